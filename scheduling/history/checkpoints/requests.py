"""Requests of SREs for the checkpoints of a cell: list, save, verify and download them. Imports no heavy library."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from celery import current_app
from django.conf import settings
from django.db import transaction

from quota.vocabulary.errors import Conflict, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.history.archive.store import store
from scheduling.history.checkpoints.file import CheckpointError, verify
from scheduling.history.checkpoints.folder import StoredCheckpoint, checkpoints_of, key_of, open_checkpoint
from scheduling.journal import wakeups
from scheduling.models import Cell
from scheduling.storage.files import NotThere, StoreAway

_WITHIN_S = 40.0  # below the deadline of a request
MOST_HOURS = 24 * 31


def checkpoints_listed(*, principal: Principal, cell: Cell) -> list[StoredCheckpoint]:
    """Return the stored checkpoints of a cell, newest first. Raises `Forbidden` unless the caller is an SRE."""
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    with _reachable():
        return checkpoints_of(cell.folder)


def checkpoint_request(*, principal: Principal, cell: Cell) -> int:
    """Ask a worker to save a checkpoint of a cell, and return the cell's present revision. The checkpoint will have
    this revision or a later one. Raises `Forbidden` unless the caller is an SRE, and `Rejected` if Redis is away.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    if not wakeups.answers():
        raise Rejected(
            "redis-unavailable", "Redis with the queue of the workers is unreachable; try again later", status=503
        )
    transaction.on_commit(lambda: current_app.send_task("scheduling.checkpoint_save", args=[cell.name]))
    return cell.revision


def checkpoint_verified(*, principal: Principal, cell: Cell, revision: int) -> StoredCheckpoint:
    """Return a stored checkpoint whose checksums are right. Raises `NotFound` if there is none at this revision, and
    `Conflict` with the name of the section if the file is damaged.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    key = key_of(cell.folder, min(revision, 2**63))  # no name of a file is longer
    try:
        with _reachable(), open_checkpoint(key) as file:
            return StoredCheckpoint(key, verify(file), os.fstat(file.fileno()).st_size)
    except NotThere:
        known = [str(one.header.revision) for one in checkpoints_of(cell.folder)[:20]]
        raise NotFound("checkpoint", str(revision), known=known) from None
    except CheckpointError as error:
        raise Conflict("checkpoint-damaged", str(error), fields={"section": error.section}) from error


def checkpoint_redacted(*, principal: Principal, cell: Cell, revision: int) -> BinaryIO:
    """Return a redacted copy of a stored checkpoint, as an open file without a name. A process of its own makes it, so
    that its memory is free again afterwards. Raises the same errors as `checkpoint_verified`.
    """
    found = checkpoint_verified(principal=principal, cell=cell, revision=revision)
    out = tempfile.NamedTemporaryFile(prefix="borg-redacted-")  # noqa: SIM115 - the caller closes it
    with _reachable(), store().local(found.key) as path:
        command = [sys.executable, "-m", "scheduling.history.checkpoints.redact", str(path), out.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    if done.returncode:
        out.close()
        raise RuntimeError(
            f"cannot redact the checkpoint {found.key}; its process printed: {done.stderr.strip()[-1000:]}"
        )
    return out  # type: ignore[return-value]


def checkpoint_content(*, principal: Principal, cell: Cell, revision: int) -> BinaryIO:
    """Return a stored checkpoint whose checksums are right, as an open file. Raises the same errors as
    `checkpoint_verified`.
    """
    found = checkpoint_verified(principal=principal, cell=cell, revision=revision)
    with _reachable():
        return found.open()


def checkpoint_of_moment(
    *, principal: Principal, cell: Cell, revision: int | None, time: dt.datetime | None, hours: float
) -> BinaryIO:
    """Return a checkpoint of the cell at a revision, at a time, or at present, as an open file without a name. It also
    contains the usage of tasks before, and the submitted jobs, ended tasks and changes of machines in the `hours`
    afterwards. Another process makes it.

    Raises `Rejected` if the moment cannot be rebuilt, or if this takes too long.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    if revision is not None and time is not None:
        raise invalid("time", "a revision and a time are given; give only one of them")
    if not 0 <= hours <= MOST_HOURS:
        raise invalid("hours", f"{hours:g} hours are not accepted; give a number from 0 to {MOST_HOURS}")
    out = tempfile.NamedTemporaryFile(prefix="borg-moment-")  # noqa: SIM115 - the caller closes it
    command = [sys.executable, "-m", "django", "checkpoint", cell.name, "--output", out.name, "--hours", str(hours)]
    if revision is not None:
        command += ["--revision", str(revision)]
    if time is not None:
        command += ["--time", time.isoformat()]
    # No process reads the metrics of the child.
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE, "PROMETHEUS_MULTIPROC_DIR": ""}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
        # A process that was killed prints nothing.
        lines = done.stderr.strip().splitlines() or [f"its process ended with status {done.returncode}"]
        problem = lines[-1:] if done.returncode else []
    except subprocess.TimeoutExpired:
        problem = [f"it takes more than {_WITHIN_S:g} s; give fewer hours, or a moment just after a checkpoint"]
    if problem:
        out.close()
        raise Conflict(
            "checkpoint-impossible", f"the checkpoint cannot be made: {problem[0].removeprefix('CommandError: ')}"
        )
    return out  # type: ignore[return-value]


@contextmanager
def _reachable() -> Iterator[None]:
    """Convert `StoreAway` in the `with` block to `Rejected`."""
    try:
        yield
    except StoreAway as error:
        detail = f"the checkpoints cannot be read; try again later, or ask an SRE: {error}"
        raise Rejected("archive-away", detail, status=503) from error
