"""What SREs can do with the stored checkpoints of a cell. Light: imports no heavy library."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from celery import current_app
from django.db import transaction

from quota.vocabulary.errors import Conflict, NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.history.archive.store import store
from scheduling.history.checkpoints.file import CheckpointError, verify
from scheduling.history.checkpoints.folder import StoredCheckpoint, checkpoints_of, key_of, open_checkpoint
from scheduling.journal import wakeups
from scheduling.models import Cell
from scheduling.storage.files import NotThere, StoreAway

_WITHIN_S = 40.0  # below the deadline of a request


def checkpoints_listed(*, principal: Principal, cell: Cell) -> list[StoredCheckpoint]:
    """Return the stored checkpoints of a cell, newest first. Raises `Forbidden` unless the caller is an SRE."""
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    with _reachable():
        return checkpoints_of(cell.name)


def checkpoint_request(*, principal: Principal, cell: Cell) -> int:
    """Ask a worker to save a checkpoint of a cell, and return the cell's present revision. The checkpoint will have
    this revision or a later one. Raises `Forbidden` unless the caller is an SRE, and `Rejected` if Redis is away.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    if not wakeups.answers():
        raise Rejected("redis-unavailable", "the queue of the workers is unreachable; try again later", status=503)
    transaction.on_commit(lambda: current_app.send_task("scheduling.checkpoint_save", args=[cell.name]))
    return cell.revision


def checkpoint_verified(*, principal: Principal, cell: Cell, revision: int) -> StoredCheckpoint:
    """Return a stored checkpoint whose checksums are right. Raises `NotFound` if there is none at this revision, and
    `Conflict` with the name of the section if the file is damaged.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    key = key_of(cell.name, min(revision, 2**63))  # no name of a file is longer
    try:
        with _reachable(), open_checkpoint(key) as file:
            return StoredCheckpoint(key, verify(file), os.fstat(file.fileno()).st_size)
    except NotThere:
        known = [str(one.header.revision) for one in checkpoints_of(cell.name)[:20]]
        raise NotFound("checkpoint", str(revision), known=known) from None
    except CheckpointError as error:
        raise Conflict("checkpoint-damaged", str(error), fields={"section": error.section}) from error


def checkpoint_redacted(*, principal: Principal, cell: Cell, revision: int) -> BinaryIO:
    """Return a redacted copy of a stored checkpoint, as an open file without a name. Another process makes it, which
    ends with the memory that it needs. Raises the same errors as `checkpoint_verified`.
    """
    found = checkpoint_verified(principal=principal, cell=cell, revision=revision)
    out = tempfile.NamedTemporaryFile(prefix="borg-redacted-")  # noqa: SIM115 - the caller closes it
    with _reachable(), store().local(found.key) as path:
        command = [sys.executable, "-m", "scheduling.history.checkpoints.redact", str(path), out.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    if done.returncode:
        out.close()
        raise RuntimeError(f"cannot redact {found.key}: {done.stderr.strip()[-1000:]}")
    return out  # type: ignore[return-value]


def checkpoint_content(*, principal: Principal, cell: Cell, revision: int) -> BinaryIO:
    """Return a stored checkpoint whose checksums are right, as an open file. Raises the same errors as
    `checkpoint_verified`.
    """
    found = checkpoint_verified(principal=principal, cell=cell, revision=revision)
    with _reachable():
        return found.open()


@contextmanager
def _reachable() -> Iterator[None]:
    """Convert `StoreAway` in the `with` block to `Rejected`."""
    try:
        yield
    except StoreAway as error:
        raise Rejected("archive-away", f"the checkpoints cannot be read: {error}", status=503) from error
