"""Reading the rotated log files that supervisors write (`logwriter`), and forgetting old ones.

Log directories are opened without following links, file by file and only regular ones with one name: a
task that runs as the Borglet's own user could have planted anything there.
"""

from __future__ import annotations

import codecs
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from borglet.messages import LogChunk, LogRequest
from borglet.runtimes.logwriter import files_of
from borglet.runtimes.taskdirs import directory_name, log_directory

STREAMS = ("stdout", "stderr")
MAX_CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class LogRetention:
    """`keep_s` after its task was removed, and only while all logs of removed tasks fit `budget_bytes`."""

    keep_s: float = 7 * 86400.0
    budget_bytes: int = 2 * 2**30


def read_log(home: Path, request: LogRequest) -> LogChunk:
    """What is left of the asked range; text is cut at a character's border, bad bytes become U+FFFD."""

    def refuse(error: str) -> LogChunk:
        return LogChunk(request.request_id, offset=0, end=0, text="", error=error)

    if request.stream not in STREAMS:
        return refuse(f"stream: no {request.stream!r}; ask for {' or '.join(STREAMS)}")
    if request.limit_bytes <= 0:
        return refuse(f"limit_bytes: {request.limit_bytes} is too small; ask for at least 1")
    try:
        directory = _open_directory(log_directory(home, directory_name(request.key)))
    except ValueError as error:
        return refuse(str(error))
    except OSError:
        return refuse(f"no logs of task {request.key} are kept on this machine")
    try:
        return _read(directory, request)
    finally:
        os.close(directory)


def _read(directory: int, request: LogRequest) -> LogChunk:
    files = []  # (first offset, size, descriptor)
    try:
        for first, name in files_of(os.listdir(directory), request.stream):
            if (file := _open_regular(directory, name)) >= 0:
                files.append((first, os.fstat(file).st_size, file))
        if not files:
            return LogChunk(request.request_id, 0, 0, "")
        beginning, end = files[0][0], files[-1][0] + files[-1][1]
        wanted = end + request.offset if request.offset < 0 else request.offset
        start = min(max(wanted, beginning), end)
        left = min(request.limit_bytes, MAX_CHUNK_BYTES)
        parts: list[bytes] = []
        position = start
        for first, size, file in files:
            if left > 0 and first <= position < first + size:
                part = os.pread(file, min(left, first + size - position), position - first)
                parts.append(part)
                position += len(part)
                left -= len(part)
        data = b"".join(parts)
    finally:
        for _, _, file in files:
            os.close(file)
    text, length = _decode(data)
    return LogChunk(request.request_id, offset=start, end=start + length, text=text)


def _decode(data: bytes) -> tuple[str, int]:
    """Text, and how many bytes it stands for: a character cut at the end is left for the next chunk."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    pending = len(decoder.getstate()[0])
    if pending == len(data):
        return data.decode("utf-8", "replace"), len(data)
    return text, len(data) - pending


def _open_directory(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _open_regular(directory: int, name: str) -> int:
    """-1 for what is no plain file of this directory alone."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=directory)
    except OSError:
        return -1
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
        os.close(file)
        return -1
    return file


def sweep_logs(home: Path, *, now: float, present: set[str], retention: LogRetention) -> list[str]:
    """Delete logs of tasks not in `present` (directory names): those past their time, then oldest first
    until the rest fits the budget. Returns what was deleted. `remove` dates a directory by touching it."""
    kept = []  # (removed at, bytes, name)
    deleted = []
    root = home / "logs"
    for entry in os.scandir(root):
        if entry.name in present or not entry.is_dir(follow_symlinks=False):
            continue
        about = entry.stat(follow_symlinks=False)
        if now - about.st_mtime > retention.keep_s:
            deleted.append(entry.name)
            continue
        sizes = (file.stat(follow_symlinks=False).st_size for file in os.scandir(entry.path))
        kept.append((about.st_mtime, sum(sizes), entry.name))
    total = sum(size for _, size, _ in kept)
    for _, size, name in sorted(kept):
        if total <= retention.budget_bytes:
            break
        deleted.append(name)
        total -= size
    for name in deleted:
        shutil.rmtree(root / name)
    return deleted
