"""A program that stands for a Borglet that tests kill: it starts a task in a home and waits for its end.

Usage: `owner.py HOME MODE COMMAND…`
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Literal, cast

from borglet.runtimes.oci.oci import OciSettings
from borglet.runtimes.process import ProcessSettings
from tests.real.runtimes.machine import Machine, a_task


async def main() -> None:
    home, mode, *command = sys.argv[1:]
    settings = OciSettings() if mode == "oci" else ProcessSettings(isolation=cast(Literal["auto", "polled"], mode))
    runtime = Machine(Path(home), settings).open()
    await runtime.start(a_task(*command), run=2)
    print("started", flush=True)
    await runtime.next_end()


if __name__ == "__main__":
    asyncio.run(main())
