"""Replace whole files. After a crash, a file has its old content or its new content, never a mixture."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace a whole file. `durable`: the new content survives a power loss after the call. Raises OSError if the file
    cannot be written.
    """
    new = path.with_name(f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)  # a crash may have left an older file with another mode
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(new, path)
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Write the entries of a directory to the disk, so that new file names in it survive a power loss. Raises OSError
    if the directory cannot be opened or synchronised.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
