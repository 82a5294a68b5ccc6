"""Rotated log files of one stream, written by the task's supervisor. Imports little.

A file is named `<stream>.<offset of its first byte>`, 16 digits: the offset of any byte since the task's
first start is the name plus the position, after any rotation and any number of restarts.

A file `times.<stream>.<offset>` beside it has the times: lines of `<offset> <milliseconds since the epoch>` for the
next output, at least every ten seconds, or every second if the task prints much.

If a task prints faster than this module writes, it waits in its pipe. Only output that the disk rejects is dropped.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def file_name(stream: str, offset: int) -> str:
    return f"{stream}.{offset:016d}"


def files_of(names: list[str], stream: str) -> list[tuple[int, str]]:
    """Return (first offset, name) of the stream's files, oldest first."""
    prefix = stream + "."
    found = []
    for name in names:
        digits = name[len(prefix) :]
        if name.startswith(prefix) and len(digits) == 16 and digits.isdigit():
            found.append((int(digits), name))
    return sorted(found)


class TokenBucket:
    """Let `bytes_s` pass per second, at most one second's worth at once; a writer over the limit waits."""

    def __init__(self, bytes_s: int, *, now: float) -> None:
        self.bytes_s = bytes_s
        self.level = float(bytes_s)
        self.at = now

    def passed(self, count: int, *, now: float) -> None:
        self.level = min(self.bytes_s, self.level + (now - self.at) * self.bytes_s) - count
        self.at = now

    def wait_s(self, *, now: float) -> float:
        """Return how long to wait; 0 if more may pass now."""
        return max(0.0, -self.level / self.bytes_s - (now - self.at))


# A mark has the time of the output after it. It comes never sooner than this after the last one,
MARK_LEAST_S = 1.0
# and sooner than this only after this much output.
MARK_MOST_S = 10.0
MARK_BYTES = 4096


class LogWriter:
    """Appends to the newest file. At `file_bytes`, or once it is `file_s` old, it begins the next and keeps `keep`.

    A full or broken disk must not stop the task: output that cannot be written is dropped and counted."""

    def __init__(
        self,
        directory: int,
        stream: str,
        *,
        file_bytes: int,
        keep: int,
        file_s: float = 86400.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory  # descriptor of the log directory
        self.stream = stream
        self.file_bytes = file_bytes
        self.keep = keep
        self.file_s = file_s
        self.clock = clock  # seconds since the epoch
        self.marked_at = 0.0
        self.unmarked = 0  # bytes since then
        self.opened_at = 0.0  # when the file was begun, as far as this writer knows
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
            # Other users cannot enter the folder of logs, but tasks in an alloc, which have their own users, can read
            # the logs there.
            self.file = os.open(file_name(self.stream, self.first), FLAGS, 0o644, dir_fd=self.directory)
            about = os.fstat(self.file)
            self.size = about.st_size
        except OSError:
            self.size = 0
        self.opened_at = self.clock()
        self.marked_at = 0.0

    def write(self, data: bytes) -> None:
        now = self.clock()
        too_large = self.size + len(data) > self.file_bytes
        if self.size and (too_large or now - self.opened_at > self.file_s):
            self._rotate()
        if self.file < 0:
            self._open()
        self._mark(now)
        try:
            written = os.write(self.file, data)
        except OSError:
            written = 0
        self.size += written
        self.unmarked += written
        self.dropped += len(data) - written

    def _mark(self, now: float) -> None:
        """Write the time of the next output, also if the clock was set back."""
        since = abs(now - self.marked_at)
        if since < MARK_LEAST_S or (since < MARK_MOST_S and self.unmarked < MARK_BYTES):
            return
        self.marked_at, self.unmarked = now, 0
        try:
            file = os.open(file_name(f"times.{self.stream}", self.first), FLAGS, 0o644, dir_fd=self.directory)
        except OSError:
            return  # only the times are missing then
        try:
            os.write(file, f"{self.first + self.size} {int(now * 1000)}\n".encode())
        except OSError:
            return
        finally:
            os.close(file)

    def _rotate(self) -> None:
        self.first += self.size
        self._open()
        for first, name in files_of(os.listdir(self.directory), self.stream)[: -self.keep]:
            for old in (name, file_name(f"times.{self.stream}", first)):
                try:
                    os.unlink(old, dir_fd=self.directory)
                except OSError:
                    continue  # the next rotation tries again, if the file exists at all

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
