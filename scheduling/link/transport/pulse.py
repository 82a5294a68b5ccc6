"""Updates the time of a file regularly while the event loop of a link shard runs. If the time is old, the shard is
blocked, and a supervisor can restart it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

EVERY_S = 2.0


async def pulse_forever() -> None:
    """Every `EVERY_S` seconds, update the time of the file whose path is in the environment variable BORG_PULSE. If the
    variable is not set, do nothing.
    """
    file = os.environ.get("BORG_PULSE")
    while file:
        with contextlib.suppress(OSError):  # the disk may be full
            Path(file).touch(mode=0o600)
        await asyncio.sleep(EVERY_S)
