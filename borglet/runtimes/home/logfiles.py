"""Read the rotated log files that supervisors write (`logwriter`), and delete old ones.

A task that runs as the Borglet's own user can write to the log directories. So this module follows no links and reads
only regular files that have a single name.
"""

from __future__ import annotations

import codecs
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from borglet.messages import LogChunk, LogLine, LogRequest
from borglet.runtimes.home.taskdirs import directory_name, log_directory
from borglet.runtimes.supervisor.logwriter import files_of

STREAMS = ("stdout", "stderr")
MAX_CHUNK_BYTES = 2**20
MAX_TIMES_BYTES = 4 * 2**20
MAX_LINE_BYTES = 4096
BLOCK_BYTES = 2**20
# One search takes at most this long, because the answer to a poll waits for it. The client continues the search.
SEARCH_S = 0.4
SEARCH_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class LogRetention:
    """The time for which logs are kept: `keep_s` seconds after their task was removed, or shorter if the logs of the
    machine exceed `budget_bytes`.
    """

    keep_s: float = 7 * 86400.0
    budget_bytes: int = 2 * 2**30


def read_log(home: Path, request: LogRequest) -> LogChunk:
    """Return the requested part of a log as far as it exists, or, for a search, the lines that contain the text.

    Text is never cut inside a character, and invalid bytes become U+FFFD. A search takes up to `SEARCH_S` seconds: call
    this function in a thread.
    """

    def refuse(error: str) -> LogChunk:
        return LogChunk(request.request_id, offset=0, end=0, text="", error=error)

    if request.stream not in STREAMS:
        return refuse(f"stream: {request.stream!r} is unknown; use {' or '.join(STREAMS)}")
    if request.limit_bytes <= 0:
        return refuse(f"limit_bytes: {request.limit_bytes} is too small; give at least 1")
    try:
        path = log_directory(home, directory_name(request.key))
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except ValueError as error:
        return refuse(str(error))
    except OSError:
        return refuse(f"this machine has no logs of task {request.key}: it did not start here, or they expired")
    try:
        return search(directory, request) if request.search else _read(directory, request)
    finally:
        os.close(directory)


def _read(directory: int, request: LogRequest) -> LogChunk:
    spans = [(first, end) for first, end, _ in _open_files(directory, request.stream)]
    if not spans:
        return LogChunk(request.request_id, 0, 0, "")
    beginning, end = spans[0][0], spans[-1][1]
    wanted = end + request.offset if request.offset < 0 else request.offset
    if request.since > 0.0:
        wanted = max(wanted, printed_since(directory, request.stream, request.since))
    start = position = min(max(wanted, beginning), end)
    stop = min(end, start + min(request.limit_bytes, MAX_CHUNK_BYTES))
    data = b""
    for first, last, file in _open_files(directory, request.stream):
        if first <= position < min(last, stop):
            data += os.pread(file, min(last, stop) - position, position - first)
            position = start + len(data)
    text, length = _decode(data)
    return LogChunk(request.request_id, offset=start, end=start + length, text=text)


def printed_since(directory: int, stream: str, since: float) -> int:
    """Return an offset in the log. All output from `since` (seconds since the epoch) on is after this offset."""
    found = 0
    for offset, at in times_of(directory, stream):
        if at > since:
            break
        found = offset
    return found


def times_of(directory: int, stream: str) -> list[tuple[int, float]]:
    """Return at which times a task wrote output, oldest first: (offset in the log, seconds since the epoch)."""
    marks: list[tuple[int, float]] = []
    for _, _, file in _open_files(directory, f"times.{stream}"):
        for line in os.read(file, MAX_TIMES_BYTES).splitlines():
            offset, _, at = line.partition(b" ")
            if offset.isdigit() and at.isdigit():
                marks.append((int(offset), int(at) / 1000))
    return marks


def _decode(data: bytes) -> tuple[str, int]:
    """Decode UTF-8. Return the text and how many bytes it used. An incomplete character at the end is left out."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    pending = len(decoder.getstate()[0])
    if pending == len(data):
        return data.decode("utf-8", "replace"), len(data)
    return text, len(data) - pending


def _open_files(directory: int, stream: str) -> Iterator[tuple[int, int, int]]:
    """Yield the first offset, the end offset and an open descriptor of each log file of a stream, oldest first.

    A descriptor is closed when the next descriptor is yielded.
    """
    for first, name in files_of(os.listdir(directory), stream):
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except OSError:
            continue
        try:
            about = os.fstat(file)
            if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:
                yield first, first + about.st_size, file
        finally:
            os.close(file)


class _Found:
    """The lines that a search has found, up to the requested number and size. Add lines in order of their offsets."""

    def __init__(self, request: LogRequest, marks: list[tuple[int, float]]) -> None:
        self._request, self._marks, self._mark = request, marks, 0
        self.lines: list[LogLine] = []
        self._bytes = 0

    def add(self, offset: int, line: bytes) -> bool:
        """Add the line that begins at `offset` in the log to the result of the search. Return False if the result is
        now full, because it has the requested number of lines or bytes.
        """
        while self._mark < len(self._marks) and self._marks[self._mark][0] <= offset:
            self._mark += 1
        at = self._marks[self._mark - 1][1] if self._mark else 0.0
        text = line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        self.lines.append(LogLine(offset, text, at))
        self._bytes += len(text)
        return len(self.lines) < self._request.limit_lines and self._bytes < self._request.limit_bytes


def search(directory: int, request: LogRequest) -> LogChunk:
    """Return lines from `request.offset` on that contain the plain text `request.search`.

    One call takes at most `SEARCH_S` seconds and reads at most `SEARCH_BYTES`. `ignore_case` works for ASCII letters.
    """
    needle = request.search.encode("utf-8", "replace")
    marks = times_of(directory, request.stream)
    start = max(0, request.offset, printed_since(directory, request.stream, request.since))
    found = _Found(request, marks)
    deadline = time.monotonic() + SEARCH_S
    position, left = start, SEARCH_BYTES
    rest, rest_at = b"", position  # a line without its end
    for first, end, file in _open_files(directory, request.stream):
        if end <= position:
            continue
        if position < first:  # the rotation has deleted the files before
            rest, rest_at, position = b"", first, first
        while position < end:
            if left <= 0 or time.monotonic() > deadline:
                return _chunk(request, start, rest_at, found, complete=False)
            block = os.pread(file, min(BLOCK_BYTES, end - position), position - first)
            if not block:
                break
            position += len(block)
            left -= len(block)
            whole = rest + block
            last = whole.rfind(b"\n") + 1
            if last == 0 and len(whole) < BLOCK_BYTES:
                rest = whole
                continue
            last = last or len(whole)
            stopped = _scan(whole[:last], rest_at, needle, request.ignore_case, found)
            if stopped >= 0:
                return _chunk(request, start, stopped, found, complete=False)
            rest, rest_at = whole[last:], rest_at + last
    stopped = _scan(rest, rest_at, needle, request.ignore_case, found)
    return _chunk(request, start, position if stopped < 0 else stopped, found, complete=stopped < 0)


def _chunk(request: LogRequest, start: int, end: int, found: _Found, *, complete: bool) -> LogChunk:
    return LogChunk(request.request_id, start, end, "", lines=found.lines, complete=complete)


def _scan(lines: bytes, offset: int, needle: bytes, ignore_case: bool, found: _Found) -> int:
    """Add the lines that contain `needle` to `found`. Return -1 if all lines were searched. If `found` is full, return
    the offset in the log at which a later search continues. `offset`: the offset of `lines` in the log.
    """
    hay = lines.lower() if ignore_case else lines
    wanted = needle.lower() if ignore_case else needle
    at = hay.find(wanted)
    while at >= 0:
        begin = hay.rfind(b"\n", 0, at) + 1
        end = hay.find(b"\n", at)
        end = len(hay) if end < 0 else end
        if not found.add(offset + begin, lines[begin:end]):
            return offset + min(end + 1, len(hay))
        at = hay.find(wanted, end + 1)
    return -1


def sweep_logs(home: Path, *, now: float, present: set[str], retention: LogRetention) -> list[str]:
    """Delete expired logs. Then delete more logs until all logs fit into `retention.budget_bytes`. Return the names of
    deleted directories.

    To fit into the budget, this deletes logs of removed tasks first, then rotated files of tasks in `present` (names of
    directories), the oldest first. The newest file of each stream of a task in `present` is never deleted. Logs expire
    `keep_s` seconds after the call of `RuntimeHome.discard` for their task.
    """
    left = []  # (time of removal, bytes, name)
    deleted = []
    rotated: list[tuple[float, int, Path]] = []  # files of present tasks: (time of the last write, bytes, path)
    total = 0
    root = home / "logs"
    for entry in os.scandir(root):
        if not entry.is_dir(follow_symlinks=False):
            continue
        about = entry.stat(follow_symlinks=False)
        if entry.name not in present and now - about.st_mtime > retention.keep_s:
            deleted.append(entry.name)
            continue
        files = [(file.stat(follow_symlinks=False), file) for file in os.scandir(entry.path)]
        size = sum(info.st_size for info, _ in files)
        total += size
        if entry.name not in present:
            left.append((about.st_mtime, size, entry.name))
            continue
        names = [file.name for _, file in files]
        old = {name for stream in STREAMS for _, name in files_of(names, stream)[:-1]}
        rotated += [(info.st_mtime, info.st_size, Path(file.path)) for info, file in files if file.name in old]
    for _, size, name in sorted(left):
        if total <= retention.budget_bytes:
            break
        deleted.append(name)
        total -= size
    for name in deleted:
        shutil.rmtree(root / name)
    for _, size, path in sorted(rotated):
        if total <= retention.budget_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size
    return deleted
