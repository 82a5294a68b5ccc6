"""The checkpoints of each cell in the store of the archive: `CELL/checkpoints/REVISION.checkpoint`."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from typing import BinaryIO

from django.conf import settings

from scheduling.history.archive.store import store
from scheduling.history.checkpoints.file import CheckpointError, Header, read_header
from scheduling.models import Cell
from scheduling.storage.files import DamagedFile, NotThere

_SUFFIX = ".checkpoint"


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint in the store. `key`: its name there."""

    key: str
    header: Header
    size_bytes: int

    def open(self) -> BinaryIO:
        """Return the file, which the caller closes. Raises `NotThere` if it was deleted meanwhile, and `StoreAway` if
        it cannot be read.
        """
        return open_checkpoint(self.key)


def checkpoints_under(cell: str) -> str:
    """Return the folder in the store that has the checkpoints of a cell."""
    return f"{cell}/checkpoints"


def key_of(cell: str, revision: int) -> str:
    """Return the name in the store of a cell's checkpoint at a revision. It may not exist."""
    return f"{checkpoints_under(cell)}/{revision:015d}{_SUFFIX}"


def open_checkpoint(key: str) -> BinaryIO:
    """Return the file of the checkpoint `key`, opened for reading; the caller closes it. Raises `NotThere` if it does
    not exist, and `StoreAway` if it cannot be read.
    """
    with store().local(key) as path:
        return path.open("rb")  # a temporary copy stays until the caller closes it


def checkpoints_of(cell: str) -> list[StoredCheckpoint]:
    """Return the checkpoints of a cell, highest revision first. Files whose header is damaged are left out. Raises
    `StoreAway` if the store cannot be reached.
    """
    found = []
    for file in reversed(list(store().listing(checkpoints_under(cell)))):
        try:
            header = _header(settings.BORG_ARCHIVE, file.key, file.version)
        except NotThere:
            continue  # deleted meanwhile
        if header is not None:
            found.append(StoredCheckpoint(file.key, header, file.size_bytes))
    return found


def own_checkpoints(cell: Cell) -> list[StoredCheckpoint]:
    """Return the checkpoints of a cell's present history and of those that it continues, highest revision first. Raises
    `StoreAway` if the store cannot be reached.
    """
    return [one for one in checkpoints_of(cell.folder) if one.header.history in cell.histories]


@functools.lru_cache(maxsize=10_000)
def _header(_store: str, key: str, _version: str) -> Header | None:
    """Return the header of a checkpoint, or None if it is damaged. Results are cached, so that a list of checkpoints
    does not request each file from the store again.
    """
    with store().read(key) as chunks:
        try:
            return read_header(io.BytesIO(next(chunks, b"")))
        except (CheckpointError, DamagedFile):
            return None
