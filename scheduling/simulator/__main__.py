"""Serves one session with a simulated cell: `python -m scheduling.simulator SOURCE FOLDER`. `borgctl faux open` starts
this process.

SOURCE: the name of a trace or `checkpoint`, see `sessions.sources`. FOLDER: where the socket of the session is created.
"""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path

from scheduling.core.warm import compile_kernels, release_compiler
from scheduling.simulator.sessions.service import IDLE_S, SessionService, serve
from scheduling.simulator.sessions.session import Session
from scheduling.simulator.sessions.sources import SOURCES, open_source
from scheduling.simulator.simulation import Settings


def main(arguments: list[str] | None = None) -> int:
    """Load the source of the cell, and answer requests until the session is closed. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scheduling.simulator", description="Serve a simulated cell.")
    parser.add_argument("source", choices=sorted(SOURCES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, help="Folder with the files of a trace, or the file of a checkpoint.")
    parser.add_argument("--delete-data", action="store_true", help="Delete the file of --data after it was read.")
    parser.add_argument("--about", help="Name of the source, as the session shows it.")
    parser.add_argument("--seed", type=int, default=2011)
    parser.add_argument("--pass-every", type=float, default=1.0)
    parser.add_argument("--memory-mib", type=int, help="Limit of the memory of this process.")
    parser.add_argument("--cpu-s", type=int, help="Limit of the CPU time of this process.")
    parser.add_argument(
        "--idle-s", type=float, default=IDLE_S, help="Seconds without a request until the process ends."
    )
    given = parser.parse_args(arguments)
    for kind, most in (
        (resource.RLIMIT_AS, given.memory_mib and given.memory_mib << 20),
        (resource.RLIMIT_CPU, given.cpu_s),
    ):
        if most:
            resource.setrlimit(kind, (most, most))
    try:
        settings = Settings(pass_every_s=given.pass_every)
        try:
            simulation = open_source(given.source, given.data, settings=settings, seed=given.seed)
        finally:
            if given.delete_data and given.data is not None:
                given.data.unlink(missing_ok=True)
        compile_kernels()
        release_compiler()
        serve(SessionService(Session(simulation), given.about or given.source), given.folder, idle_s=given.idle_s)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
