"""Saves checkpoints of cells in a folder of BORG_HOME, and deletes old ones."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from django.conf import settings

from scheduling.history.checkpoints.file import Header
from scheduling.history.checkpoints.folder import checkpoints_of, folder_of, path_of
from scheduling.models import Cell
from scheduling.policy import cell_settings

if TYPE_CHECKING:
    from scheduling.history.checkpoints.tables import Tables

log = structlog.get_logger(__name__)

_DAY_S = 86400.0
_WITHIN_S = 600.0


def checkpoint_write(cell_id: int) -> Path:
    """Save a checkpoint of a cell at its present revision, and return the file. If the file exists, it is kept.

    Reads one repeatable-read snapshot and takes no lock, so no writer waits. Imports heavy libraries: other processes
    than commands call `checkpoint_save`.
    """
    from scheduling.history.checkpoints.rows import header_of, read_cell

    header = header_of(cell_id)
    for known in checkpoints_of(header.cell):
        if (known.header.revision, known.header.history) == (header.revision, header.history):
            return known.path
    return store(*read_cell(cell_id))


def store(header: Header, tables: Tables) -> Path:
    """Write a checkpoint to the folder of its cell, completely or not at all. Return the file."""
    from scheduling.history.checkpoints import file

    target = path_of(header.cell, header.revision)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, partial = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as out:
            file.write(out, header, tables)
            out.flush()
            os.fsync(descriptor)
        Path(partial).replace(target)
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


def checkpoint_save(cell: Cell) -> None:
    """Save a checkpoint in a process of its own, which ends with the memory that it needs. Raises `RuntimeError` with
    the output of this process if it fails.
    """
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE}
    command = [sys.executable, "-m", "django", "checkpoint", cell.name]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    if done.returncode:
        raise RuntimeError(f"cannot save a checkpoint of cell {cell.name}: {done.stderr.strip()[-1000:]}")


def due(cell: Cell, *, now: dt.datetime) -> bool:
    """Return whether the cell's newest checkpoint is older than the cell's settings allow, and the cell has changed
    since.
    """
    interval_h = cell_settings.load(cell.settings).checkpoint_interval_h
    if not interval_h:
        return False
    own = [known.header for known in checkpoints_of(cell.name) if known.header.history == str(cell.history_id)]
    if not own:
        return cell.revision > 0
    newest = max(own, key=lambda header: header.revision)
    return cell.revision > newest.revision and now.timestamp() - newest.taken_at >= interval_h * 3600


def checkpoints_drop_old(cell: Cell, *, now: dt.datetime) -> int:
    """Delete old checkpoints of a cell. Return how many. All checkpoints of the last 24 hours stay. Of each earlier
    day (UTC) the first stays, for as many days as the cell's settings say.
    """
    keep_s = cell_settings.load(cell.settings).checkpoint_keep_days * _DAY_S
    kept_days: set[tuple[str, int]] = set()
    dropped = 0
    for known in sorted(checkpoints_of(cell.name), key=lambda known: known.header.taken_at):
        taken_at, day = known.header.taken_at, (known.header.history, int(known.header.taken_at // _DAY_S))
        age_s = now.timestamp() - taken_at
        if age_s > _DAY_S and (age_s > keep_s or day in kept_days):
            known.path.unlink(missing_ok=True)
            dropped += 1
        else:
            kept_days.add(day)
    for forgotten in folder_of(cell.name).glob(".*.partial"):
        if now.timestamp() - forgotten.stat().st_mtime > _DAY_S:
            forgotten.unlink(missing_ok=True)
    return dropped
