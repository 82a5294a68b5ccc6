"""The folder with the checkpoints of each cell: `checkpoints/CELL/REVISION.checkpoint` in BORG_HOME."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from scheduling.history.checkpoints.file import CheckpointError, Header, read_header

_SUFFIX = ".checkpoint"


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint in the folder."""

    path: Path
    header: Header
    size_bytes: int


def folder_of(cell: str) -> Path:
    """Return the folder with the checkpoints of a cell. It may not exist yet."""
    return Path(settings.BORG_HOME) / "checkpoints" / cell


def path_of(cell: str, revision: int) -> Path:
    """Return the file of a cell's checkpoint at a revision. It may not exist."""
    return folder_of(cell) / f"{revision:015d}{_SUFFIX}"


def checkpoints_of(cell: str) -> list[StoredCheckpoint]:
    """Return the checkpoints of a cell, highest revision first. Files whose header is damaged are left out."""
    found = []
    for path in sorted(folder_of(cell).glob(f"*{_SUFFIX}"), reverse=True):
        try:
            with path.open("rb") as file:
                found.append(StoredCheckpoint(path, read_header(file), path.stat().st_size))
        except (FileNotFoundError, CheckpointError):
            continue  # deleted meanwhile, or never readable again
    return found
