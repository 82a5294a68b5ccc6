"""Rotated log files of one stream, written by the task's supervisor. Imports `os` alone.

A file is named `<stream>.<offset of its first byte>`, 16 digits: the offset of any byte since the task's
first start is the name plus the position, whatever was rotated away and however often the task restarted.
"""

from __future__ import annotations

import os

FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def file_name(stream: str, offset: int) -> str:
    return f"{stream}.{offset:016d}"


def files_of(names: list[str], stream: str) -> list[tuple[int, str]]:
    """(first offset, name) of the stream's files, oldest first."""
    prefix = stream + "."
    found = []
    for name in names:
        digits = name[len(prefix) :]
        if name.startswith(prefix) and len(digits) == 16 and digits.isdigit():
            found.append((int(digits), name))
    return sorted(found)


class LogWriter:
    """Appends to the newest file; at `file_bytes` begins the next and keeps `keep` of them.

    A full or broken disk must not stop the task: what can't be written is dropped and counted.
    """

    def __init__(self, directory: int, stream: str, *, file_bytes: int, keep: int) -> None:
        self.directory = directory  # descriptor of the log directory
        self.stream = stream
        self.file_bytes = file_bytes
        self.keep = keep
        self.dropped = 0
        self.file = -1
        self.size = 0
        files = files_of(os.listdir(directory), stream)
        self.first = files[-1][0] if files else 0
        self._open()

    def _open(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        try:
            # The folder of logs is closed to others; that of an alloc is open to the tasks inside, which have users of
            # their own.
            self.file = os.open(file_name(self.stream, self.first), FLAGS, 0o644, dir_fd=self.directory)
            self.size = os.fstat(self.file).st_size
        except OSError:
            self.size = 0

    def write(self, data: bytes) -> None:
        if self.size and self.size + len(data) > self.file_bytes:
            self._rotate()
        if self.file < 0:
            self._open()
        try:
            written = os.write(self.file, data)
        except OSError:
            written = 0
        self.size += written
        self.dropped += len(data) - written

    def _rotate(self) -> None:
        self.first += self.size
        self._open()
        for _, name in files_of(os.listdir(self.directory), self.stream)[: -self.keep]:
            try:
                os.unlink(name, dir_fd=self.directory)
            except OSError:
                continue  # tried again at the next rotation

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
