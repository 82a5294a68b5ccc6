"""The pulse of a link shard: it touches a file as long as its event loop runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

EVERY_S = 2.0


async def pulse_forever() -> None:
    """Touch the file that the environment variable BORG_PULSE names, every `EVERY_S`. Return if there is none."""
    file = os.environ.get("BORG_PULSE")
    while file:
        with contextlib.suppress(OSError):  # the disk may be full
            Path(file).touch(mode=0o600)
        await asyncio.sleep(EVERY_S)
