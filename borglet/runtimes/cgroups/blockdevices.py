"""Which disk a directory lies on, as the kernel's I/O controllers name it."""

from __future__ import annotations

import os
from pathlib import Path


def disk_of(directory: Path, *, devices: Path = Path("/sys/dev/block")) -> str:
    """`major:minor` of the whole disk below `directory`; empty where no disk is (overlay, tmpfs, a network's)."""
    number = os.stat(directory).st_dev
    entry = devices / f"{os.major(number)}:{os.minor(number)}"
    if not entry.exists():
        return ""
    disk = entry.resolve()
    if (disk / "partition").exists():  # limits are the whole disk's business
        disk = disk.parent
    try:
        return (disk / "dev").read_text().strip()
    except OSError:
        return ""
