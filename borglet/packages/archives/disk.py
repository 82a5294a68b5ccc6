"""Write a tree to the disk, and compute the digests of a tree on the disk.

This module opens each directory from its parent and never follows a link. So it writes only below the target, even if
another process puts links there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path as FilePath

from borglet.packages.archives.checked_tree import Path, Sink, TreeDigests, lines_of
from borglet.packages.archives.limits import go_on
from borglet.packages.archives.tarstream import EntryKind

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORY_MODE, FILE_MODE, PROGRAM_MODE = 0o555, 0o444, 0o555
_READ_BYTES = 1024 * 1024


class DiskSink(Sink):
    """A sink that writes the files of an archive below `target`, an empty directory. Call `close` at the end."""

    def __init__(self, target: FilePath) -> None:
        self._root = os.open(target, _DIRECTORY)
        self._path: Path = ()  # the last directory that was written to
        self._open: list[int] = []  # descriptors of the directories of this path, without the root

    def close(self) -> None:
        self._close_below(0)
        os.close(self._root)

    def _close_below(self, common: int) -> None:
        """Close open directories, except the first `common` ones. The open directories are those on the path to the
        last written file.
        """
        while len(self._open) > common:
            os.close(self._open.pop())
        self._path = self._path[:common]

    def _directory(self, path: Path) -> int:
        if path != self._path:
            common = 0
            while self._path[common : common + 1] == path[common : common + 1] != ():
                common += 1
            self._close_below(common)
            for part in path[common:]:
                above = self._open[-1] if self._open else self._root
                self._open.append(os.open(part, _DIRECTORY, dir_fd=above))
                self._path = (*self._path, part)
        return self._open[-1] if self._open else self._root

    def make_directory(self, path: Path) -> None:
        os.mkdir(path[-1], 0o700, dir_fd=self._directory(path[:-1]))

    def write_file(self, path: Path, *, executable: bool, content: Iterable[bytes]) -> None:
        descriptor = os.open(path[-1], _NEW_FILE, 0o600, dir_fd=self._directory(path[:-1]))
        try:
            for piece in content:
                left = memoryview(piece)
                while left:
                    left = left[os.write(descriptor, left) :]
            os.fchmod(descriptor, PROGRAM_MODE if executable else FILE_MODE)
        finally:
            os.close(descriptor)

    def make_link(self, path: Path, target: str) -> None:
        os.symlink(target, path[-1], dir_fd=self._directory(path[:-1]))

    def make_hard_link(self, path: Path, existing: Path) -> None:
        source = os.dup(self._directory(existing[:-1]))
        try:
            os.link(
                existing[-1], path[-1], src_dir_fd=source, dst_dir_fd=self._directory(path[:-1]), follow_symlinks=False
            )
        finally:
            os.close(source)

    def remove(self, path: Path, *, directory: bool) -> None:
        parent = self._directory(path[:-1])
        if directory:
            os.rmdir(path[-1], dir_fd=parent)
        else:
            os.unlink(path[-1], dir_fd=parent)

    def finish_directory(self, path: Path) -> None:
        os.fchmod(self._directory(path), DIRECTORY_MODE)


def digests_of(root: FilePath, *, contents: bool, checkpoint: Callable[[], None] = go_on) -> TreeDigests:
    """Return the digests of a tree on the disk. If the tree was not changed, they are equal to the digests that
    `Tree.finish` returned. If `contents` is false, no file is read, and the digest `contents` is empty.

    If the tree contains a device, a writable file or anything else that an unpacked package cannot contain, the digest
    `listing` is different.
    """
    listing, everything = hashlib.sha256(), hashlib.sha256()
    for path, found in _walk(root):
        checkpoint()
        kind, sha256, target, size, executable = (EntryKind.FILE, "", "", found.st_size, found.st_mode & 0o111 != 0)
        wanted_mode = PROGRAM_MODE if executable else FILE_MODE
        full = root.joinpath(*path)
        if stat.S_ISDIR(found.st_mode):
            kind, wanted_mode = EntryKind.DIRECTORY, DIRECTORY_MODE
        elif stat.S_ISLNK(found.st_mode):
            kind, target, wanted_mode = (EntryKind.SYMBOLIC_LINK, os.readlink(full), stat.S_IMODE(found.st_mode))
        elif not stat.S_ISREG(found.st_mode):
            listing.update(b"not of a package\n")
        if stat.S_IMODE(found.st_mode) != wanted_mode:
            listing.update(b"mode\n")
        if contents and kind is EntryKind.FILE and stat.S_ISREG(found.st_mode):
            sha256 = file_digest(full, checkpoint=checkpoint)
        line, content = lines_of(path, kind, size, executable, target, sha256)
        listing.update(line)
        everything.update(content)
    return TreeDigests(listing.hexdigest(), everything.hexdigest() if contents else "")


def _walk(root: FilePath) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the path and the attributes of each entry. Parents come before children, and names are sorted."""
    todo: list[Path] = [()]
    while todo:
        path = todo.pop()
        found = os.lstat(root.joinpath(*path))
        if path:
            yield path, found
        if stat.S_ISDIR(found.st_mode):
            names = sorted(os.listdir(root.joinpath(*path)), reverse=True)
            todo += [(*path, name) for name in names]


def file_digest(path: FilePath, *, checkpoint: Callable[[], None] = go_on) -> str:
    """Return the SHA-256 of a file, hex. A link is not followed. Raises OSError if the file cannot be read."""
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        while piece := file.read(_READ_BYTES):
            checkpoint()
            digest.update(piece)
    return digest.hexdigest()


def remove_tree(path: FilePath) -> None:
    """Delete a file, or a directory with all its content, even if the directories are read-only. Ignore a missing path.
    Raises OSError if a file cannot be deleted.
    """
    if path.is_dir() and not path.is_symlink():
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
