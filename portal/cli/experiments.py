"""The command that runs the paper's experiments on this host (§5)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from portal.cli.context import Commands, Context
from portal.cli.failure import CommandFailed

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
            help="compaction, segregation, split-users, split-cells, shapes, buckets, reclamation, estimation, or all.",
        ),
    ],
    data: Annotated[str, typer.Option(help="Folder with the files of Google's trace of 2011.")],
    output: Annotated[str, typer.Option(help="Folder for finished trials and the report.")],
    trials: Annotated[int, typer.Option(min=1, help="Trials per case.")] = 11,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: the number of cores.")] = None,
) -> int:
    """Run experiments of the Borg paper, Figures 4 to 10 and 12, on this host. The result is a report in HTML.

    Finished trials are kept in the output folder. If you repeat an interrupted command, it continues.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(
            "no-server",
            f"experiments need the server's packages, and this host does not have {', '.join(missing)}; run the command"
            " on a host of the cell, or install borg-portal[server]",
        )
    command = [sys.executable, "-m", _MODULE, *names, "--data", data, "--output", output, "--trials", str(trials)]
    if jobs is not None:
        command += ["--jobs", str(jobs)]
    return subprocess.run(command, check=False).returncode
