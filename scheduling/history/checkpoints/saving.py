"""Saves checkpoints of cells in the store of the archive, and deletes old ones."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
from django.conf import settings

from scheduling.history.archive.store import store
from scheduling.history.checkpoints.file import Header
from scheduling.history.checkpoints.folder import checkpoints_of, key_of, own_checkpoints
from scheduling.history.checkpoints.thinning import DAY_S, superfluous
from scheduling.journal.sql import query
from scheduling.models import Cell
from scheduling.policy import cell_settings

if TYPE_CHECKING:
    from scheduling.history.checkpoints.tables import Tables

log = structlog.get_logger(__name__)

_WITHIN_S = 600.0
_DRAFT = "checkpoint-"


def checkpoint_write(cell_id: int) -> str:
    """Save a checkpoint of a cell at its present revision, and return its name in the store. If it exists, it is kept.

    Reads one repeatable-read snapshot and takes no lock, so no writer waits. Imports heavy libraries, so only commands
    call it; other processes call `checkpoint_save`.
    """
    from scheduling.history.checkpoints.rows import header_of, read_cell

    header, folder = header_of(cell_id), Cell.objects.get(pk=cell_id).folder
    for known in checkpoints_of(folder):
        if (known.header.revision, known.header.history) == (header.revision, header.history):
            return known.key
    header, tables = read_cell(cell_id)
    return checkpoint_store(msgspec.structs.replace(header, events=_events_until(cell_id, header)), tables, folder)


def checkpoint_store(header: Header, tables: Tables, folder: str = "") -> str:
    """Write a checkpoint of a cell to the store, completely or not at all. Return its name in the store. `folder`: the
    folder of the cell in the store; empty if it is the name of the cell.
    """
    from scheduling.history.checkpoints import file

    key, files = key_of(folder or header.cell, header.revision), store()
    descriptor, name = tempfile.mkstemp(dir=files.spool(), prefix=_DRAFT)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            file.write(out, header, tables)
        files.put(key, draft)
    finally:
        draft.unlink(missing_ok=True)
    return key


def checkpoint_save(cell: Cell) -> None:
    """Save a checkpoint in a process of its own, so that its memory is free again afterwards. Raises `RuntimeError`
    with the output of this process if it fails.
    """
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE}
    command = [sys.executable, "-m", "django", "checkpoint", cell.name]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    if done.returncode:
        printed = done.stderr.strip()[-1000:]
        raise RuntimeError(f"cannot save a checkpoint of cell {cell.name}; its process printed: {printed}")


def due(cell: Cell, *, now: dt.datetime) -> bool:
    """Return whether a new checkpoint of the cell should be saved: whether the cell has changed since its newest
    checkpoint, and this checkpoint is older than the cell's settings allow, or more events have been written since than
    they allow.
    """
    chosen = cell_settings.load(cell.settings)
    if not chosen.checkpoint_interval_h:
        return False
    own = own_checkpoints(cell)
    if not own:
        return cell.revision > 0
    newest = own[0].header
    if cell.revision <= newest.revision:
        return False
    if now.timestamp() - newest.taken_at >= chosen.checkpoint_interval_h * 3600:
        return True
    most = int(chosen.checkpoint_events)
    return 0 < most <= _events_between(cell.id, newest.revision, cell.revision, most=most)


def checkpoints_drop_old(cell: Cell, *, now: dt.datetime) -> int:
    """Delete old checkpoints of a cell, as its settings say. Return how many."""
    chosen = cell_settings.load(cell.settings)
    known = checkpoints_of(cell.folder)
    files = store()
    unneeded = superfluous(
        [one.header for one in known],
        now=now.timestamp(),
        keep_s=chosen.checkpoint_keep_days * DAY_S,
        most_events=int(chosen.checkpoint_events),
        same=cell.histories,
    )
    for one in known:
        if one.header in unneeded:
            files.delete(one.key)
    for forgotten in files.spool().glob(f"{_DRAFT}*"):  # of processes that were killed
        if now.timestamp() - forgotten.stat().st_mtime > DAY_S:
            forgotten.unlink(missing_ok=True)
    return len(unneeded)


def _events_until(cell_id: int, header: Header) -> int:
    """Return the number of events for the header of a new checkpoint: the number in the header before it, plus the
    events since then.
    """
    own = own_checkpoints(Cell.objects.get(pk=cell_id))
    before = next((one.header for one in own if one.header.revision < header.revision), None)
    if before is None:
        return 0
    return before.events + _events_between(cell_id, before.revision, header.revision)


def _events_between(cell_id: int, low: int, high: int, *, most: int | None = None) -> int:
    """Return the number of events after the revision `low` up to `high`, at most `most`."""
    statement = (
        "SELECT count(*) FROM (SELECT FROM scheduling_event"
        " WHERE cell_id = %s AND revision > %s AND revision <= %s LIMIT %s) AS counted"
    )
    return int(query(statement, [cell_id, low, high, most])[0][0])
