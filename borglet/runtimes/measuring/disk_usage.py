"""Measure the disk usage of a task's folders. A walk reads all of these folders, in steps of limited size.

    step ─ about `STEP` entries ─► sum so far ─ … ─► total, reported until the next walk ends or exceeds it

A hostile task may make more files than one step can count, and paths longer than the kernel accepts. So a walk takes
several steps, and long paths are opened in parts. The walk misses deleted files that are still open, files that move
during the walk and, if the Borglet is not root, folders that the Borglet may not read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# The entries of one step, which takes some tenths of a second.
STEP = 100_000
# Paths are opened in parts of fewer bytes than this, because the kernel accepts 4,096.
PART_BYTES = 3_500
# Opening a folder this many levels deep costs as much as one entry.
LEVELS = 16
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder(NamedTuple):
    """One folder of a walk. It stores its name and its parent folder instead of a path, to save memory."""

    parent: Folder | None
    name: str
    level: int = 0

    def below(self, name: str) -> Folder:
        return Folder(self, name, self.level + 1)

    def open(self) -> int:
        """Return an open descriptor of the folder. Raises OSError if the folder cannot be opened."""
        names = []
        step: Folder | None = self
        while step is not None:
            names.append(step.name)
            step = step.parent
        return _open(names[::-1])


class DiskWalk:
    """Measures the disk usage of some directories, again and again. Symbolic links are not followed. A file with
    several names (hard links) counts once.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._pending: list[Folder] = []
        self._seen: set[int] = set()  # inodes with several names
        self._sum = self._whole = 0

    @property
    def bytes(self) -> int:
        """Return the larger of two values: the result of the last complete walk, and the sum of the present walk so
        far.
        """
        return max(self._sum, self._whole)

    @property
    def done(self) -> bool:
        return not self._pending

    def step(self, at_most: int = STEP) -> int:
        """Read about `at_most` more entries of the directories. If the last walk through the directories is complete,
        start a new one. Return the disk usage as known now, in bytes (the property `bytes`). This call blocks.
        """
        if self.done:
            self._pending = [Folder(None, str(directory)) for directory in reversed(self._directories)]
            self._seen, self._sum = set(), 0
        walked = 0
        while self._pending and walked < at_most:
            walked += self._look(self._pending.pop())
        if self.done:
            self._whole = self._sum
        return self.bytes

    def _look(self, folder: Folder) -> int:
        """Add the sizes of a folder's entries to the disk usage of this walk. Return the cost of this step: the number
        of entries, plus the cost of opening the folder (1, or more for deep folders).
        """
        cost = 1 + folder.level // LEVELS
        try:
            descriptor = folder.open()
        except OSError:
            return cost  # removed during the walk, or closed by the task
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    cost += 1
                    self._add(folder, entry)
        finally:
            os.close(descriptor)
        return cost

    def _add(self, folder: Folder, entry: os.DirEntry[str]) -> None:
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:
            return
        is_folder = entry.is_dir(follow_symlinks=False)
        if about.st_nlink > 1 and not is_folder:
            if about.st_ino in self._seen:
                return
            self._seen.add(about.st_ino)
        self._sum += about.st_blocks * 512
        if is_folder:
            self._pending.append(folder.below(entry.name))


def disk_bytes(directories: Sequence[Path]) -> int:
    """Return the disk usage of the directories in bytes. Only about `STEP` entries are read, so the result is too low
    if the directories have more entries.
    """
    return DiskWalk(directories).step()


def _open(way: Sequence[str]) -> int:
    """Return a descriptor of the folder whose path has the components `way`. Raises OSError if a folder on this path
    cannot be opened.
    """
    descriptor: int | None = None
    begin = 0
    while begin < len(way):
        end, size = begin + 1, len(os.fsencode(way[begin]))
        while end < len(way) and (size := size + 1 + len(os.fsencode(way[end]))) < PART_BYTES:
            end += 1
        try:
            following = os.open("/".join(way[begin:end]), FOLDER, dir_fd=descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        descriptor, begin = following, end
    assert descriptor is not None, "a path has at least one name"
    return descriptor
