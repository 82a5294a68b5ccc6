"""What clients asked for and what was acknowledged: JSON lines, one per request, written when the request has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec


class Action(StrEnum):
    SUBMIT = "submit"
    UPDATE = "update"
    KILL = "kill"
    BUY = "buy"


class Outcome(StrEnum):
    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"  # the cell answered no, so nothing has changed
    UNKNOWN = "unknown"  # no answer, after all attempts; the request may have had its effect


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a client, with all its attempts. `name`: of the job, or the key of the order. Times: Unix seconds.

    `uid`, `version`: of the job, as acknowledged. `tasks`: how many tasks the job should have afterwards. `order`: the
    number of the order.
    """

    client: int
    action: Action
    name: str
    began: float
    ended: float
    outcome: Outcome
    attempts: int = 1
    uid: str = ""
    version: int = 0
    tasks: int = 0
    order: int = 0
    detail: str = ""


class History:
    """A file with requests, to which several threads append."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.requests: list[Request] = []

    def append(self, request: Request) -> None:
        with self._lock, self.path.open("ab") as file:
            file.write(msgspec.json.encode(request) + b"\n")
            self.requests.append(request)


def read(path: Path) -> Iterator[Request]:
    """Yield the requests in a history file."""
    for line in path.read_bytes().splitlines():
        yield msgspec.json.decode(line, type=Request)
