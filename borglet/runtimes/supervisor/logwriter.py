"""Write the log files of one output stream of a task. The task's supervisor uses this module, so it imports few others.

The name of a file is `<stream>.<offset of its first byte>`. The offset has 16 digits and counts from the task's first
start. So the offset of any byte is the number in the name plus the position in the file.

A file `times.<stream>.<offset>` has the times of the output: lines of `<offset> <milliseconds since the epoch>`, one
every ten seconds, or every second if the task prints much.

If a task prints faster than this module writes, the task waits. Output is dropped only if it cannot be written to the
disk.
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
    """Return the files of the stream `stream` among the file names `names`, oldest first, each as (first offset,
    name).
    """
    prefix = stream + "."
    found = []
    for name in names:
        digits = name[len(prefix) :]
        if name.startswith(prefix) and len(digits) == 16 and digits.isdigit():
            found.append((int(digits), name))
    return sorted(found)


class TokenBucket:
    """A limit of `bytes_s` bytes per second for a writer. After a pause, the writer may write up to `bytes_s` bytes at
    once.
    """

    def __init__(self, bytes_s: int, *, now: float) -> None:
        self.bytes_s = bytes_s
        self.level = float(bytes_s)
        self.at = now

    def passed(self, count: int, *, now: float) -> None:
        self.level = min(self.bytes_s, self.level + (now - self.at) * self.bytes_s) - count
        self.at = now

    def wait_s(self, *, now: float) -> float:
        """Return for how many seconds the writer must wait; 0 if it may write now."""
        return max(0.0, -self.level / self.bytes_s - (now - self.at))


# A mark is a line with the time of the output after it. Two marks are at least so far apart.
MARK_LEAST_S = 1.0
# The next mark follows after `MARK_BYTES` of output, or after `MARK_MOST_S`.
MARK_MOST_S = 10.0
MARK_BYTES = 4096


class LogWriter:
    """Writes one stream to log files, and keeps the newest `keep` files. It begins a new file after `file_bytes` bytes
    or `file_s` seconds.

    Output that cannot be written, for example on a full disk, is dropped and counted, so that the task can continue.
    """

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
        self.unmarked = 0  # bytes since the last mark
        self.opened_at = 0.0  # time at which this writer opened the file
        self.dropped = 0
        self.file = -1
        self.size = 0
        files = files_of(os.listdir(directory), stream)
        self.first = files[-1][0] if files else 0
        self._open()

    def _open(self) -> None:
        self.close()
        try:
            # All users may read the file, because tasks in an alloc read its logs. Others cannot enter the folder.
            self.file = os.open(file_name(self.stream, self.first), FLAGS, 0o644, dir_fd=self.directory)
            self.size = os.fstat(self.file).st_size
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
        """If a time mark is due, write it. A time mark is a line with the offset of the next output and its time
        `now`.
        """
        since = abs(now - self.marked_at)
        if since < MARK_LEAST_S or (since < MARK_MOST_S and self.unmarked < MARK_BYTES):
            return
        self.marked_at, self.unmarked = now, 0
        try:
            file = os.open(file_name(f"times.{self.stream}", self.first), FLAGS, 0o644, dir_fd=self.directory)
        except OSError:
            return  # only the times are missing
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
                    continue  # the file does not exist, or the next rotation tries again

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
