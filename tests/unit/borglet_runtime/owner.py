"""Stands in for a Borglet that is killed: starts a task in a home and waits. `owner.py HOME ISOLATION COMMAND…`"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Literal, cast

from borglet.runtimes.process import ProcessRuntime, ProcessSettings
from tests.unit.borglet_runtime.machine import a_task


async def main() -> None:
    home, isolation, *command = sys.argv[1:]
    settings = ProcessSettings(isolation=cast(Literal["auto", "polled"], isolation))
    runtime = ProcessRuntime(Path(home), settings)
    await runtime.start(a_task(*command), run=2)
    print("started", flush=True)
    await runtime.next_end()


if __name__ == "__main__":
    asyncio.run(main())
