"""Requests for parts of logs, and the answers."""

from __future__ import annotations

import msgspec

from borglet.messages.desired import TaskKey


class LogRequest(msgspec.Struct, frozen=True):
    """A request for a part of a task's log: at most `limit_bytes` bytes from `offset` on. A negative `offset` counts
    from the end of the log.

    With `search`, the answer contains at most `limit_lines` lines from `offset` on that contain the text `search`.
    `LogChunk.complete` is False if the search stopped before the end of the log; the next request then starts at
    `LogChunk.end`.
    """

    request_id: str
    key: TaskKey
    stream: str = "stdout"  # stdout | stderr
    offset: int = -65536
    limit_bytes: int = 65536
    search: str = ""
    ignore_case: bool = False
    since: float = 0.0  # seconds since the epoch: only output of this time or later
    limit_lines: int = 1000


class LogLine(msgspec.Struct, frozen=True):
    """A line that a search found. `at`: its approximate time (seconds since the epoch), 0 if it is unknown."""

    offset: int
    text: str
    at: float = 0.0


class LogChunk(msgspec.Struct, frozen=True):
    """A part of a log. `offset`: position of the first byte of `text`, counted from the task's first start. `end`:
    position after its last byte."""

    request_id: str
    offset: int
    end: int
    text: str
    error: str = ""
    lines: list[LogLine] = []
    complete: bool = True
