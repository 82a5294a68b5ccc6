"""Requests for parts of logs, and their answers."""

from __future__ import annotations

import msgspec

from borglet.messages.desired import TaskKey


class LogRequest(msgspec.Struct, frozen=True):
    """Read part of a task's log: at most `limit_bytes` from `offset` (negative: from the end).

    With `search`, the answer has the lines that contain it from `offset` on (0: the whole log), each as `LogLine`, at
    most `limit_lines`. `LogChunk.end` is the offset of the next search, and `LogChunk.complete` whether the log ends.
    """

    request_id: str
    key: TaskKey
    stream: str = "stdout"  # stdout | stderr
    offset: int = -65536
    limit_bytes: int = 65536
    search: str = ""
    ignore_case: bool = False
    since: float = 0.0  # seconds since the epoch: only what was printed then or later
    limit_lines: int = 1000


class LogLine(msgspec.Struct, frozen=True):
    """One found line. `at`: the approximate time at which it was printed (seconds since the epoch); 0 if unknown."""

    offset: int
    text: str
    at: float = 0.0


class LogChunk(msgspec.Struct, frozen=True):
    """`offset` is the position of the first byte of `text` since the task's first start; `end` the next one."""

    request_id: str
    offset: int
    end: int
    text: str
    error: str = ""
    lines: list[LogLine] = []
    complete: bool = True
