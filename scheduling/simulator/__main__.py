"""The process of a session: `python -m scheduling.simulator SOURCE DATA FOLDER`. `borgctl faux open` starts it.

SOURCE: the name of a trace. DATA: the folder with its files. FOLDER: where the socket of the session is created.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scheduling.core.warm import compile_kernels, release_compiler
from scheduling.simulator.sessions.service import SessionService, serve
from scheduling.simulator.sessions.session import Session
from scheduling.simulator.sessions.sources import SOURCES, open_source
from scheduling.simulator.simulation import Settings


def main(arguments: list[str] | None = None) -> int:
    """Load the source, and serve its session until it is closed. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scheduling.simulator", description="Serve a simulated cell.")
    parser.add_argument("source", choices=sorted(SOURCES))
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2011)
    parser.add_argument("--pass-every", type=float, default=1.0)
    given = parser.parse_args(arguments)
    try:
        settings = Settings(pass_every_s=given.pass_every)
        simulation = open_source(given.source, given.data, settings=settings, seed=given.seed)
        compile_kernels()
        release_compiler()
        serve(SessionService(Session(simulation), given.source), given.folder)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
