"""The command that runs the paper's experiments on this host (§5)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from portal.cli.context import Commands, Context
from portal.cli.failure import CommandFailed, bad_usage

app = Commands()

_MODULE = "scheduling.simulator.experiments"
_NEEDED = ("numpy", "numba", "scheduling")


@app.command("experiment")
def experiment(
    session: Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help=(
                "Experiments: compaction, segregation, split-users, split-cells, shapes, buckets, reclamation, "
                "estimation, or all."
            ),
        ),
    ],
    output: Annotated[str, typer.Option(help="Folder to which finished trials and the report are written.")],
    data: Annotated[str | None, typer.Option(help="Folder with the files of Google's trace of 2011.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="File with a checkpoint of a cell, used instead of the trace.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials for each case of an experiment.")] = 11,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of processes. Default: the number of cores.")] = None,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address of the scheduler of a Dask cluster that runs the trials."),
    ] = None,
) -> int:
    """Run experiments of the Borg paper, Figures 4 to 10 and 12. The result is a report in HTML.

    They run on Google's trace (--data) or on your own cell (--checkpoint), on this host or on a Dask cluster (--dask).
    Finished trials are kept in the output folder. If you repeat an interrupted command, it continues.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(
            "no-server",
            f"experiments need the server's packages, and this host does not have {', '.join(missing)}; run the command"
            " on a host of the cell, or install borg-portal[server]",
        )
    if (data is None) == (checkpoint is None):
        raise bad_usage("give either --data with the folder of Google's trace, or --checkpoint with a file")
    command = [sys.executable, "-m", _MODULE, *names, "--output", output, "--trials", str(trials)]
    for option, value in (("--data", data), ("--checkpoint", checkpoint), ("--jobs", jobs), ("--dask", dask)):
        if value is not None:
            command += [option, str(value)]
    return subprocess.run(command, check=False).returncode
