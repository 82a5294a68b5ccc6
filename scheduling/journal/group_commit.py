"""Group commit: submissions to one cell that arrive at about the same time are written in one transaction.

    thread 1: submit ─► leader ─► writes its own ─────────► writes 2, 3, 4 together ─► …
    thread 2: submit ─► waits ───────────────────────────────────┴─► its verdict
    thread 3: …

A transaction locks the cell until it is stored on disk. Submissions that arrive meanwhile wait, and are then written
together in the next transaction. Each submission gets its own answer, and its events contain its own caller.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import psycopg
from django.db import OperationalError

from quota.vocabulary.errors import Rejected
from scheduling.journal.journal import CHUNK

Key = tuple[int, str, str]
MOST_TOGETHER = 100
# Shorter than the deadline of any request, so that nothing is written for a request that was answered already.
LONGEST_WAIT_S = 4.0
# The time for the largest transaction of another bulk submission, also on a busy host.
BULK_WAIT_S = 60.0
_lock = threading.Lock()


class TurnLost(Rejected):
    """The error if another bulk submission of this process writes to the cell for too long."""

    def __init__(self) -> None:
        detail = "the cell is busy with another bulk submission, and the job was not stored; send it again later"
        super().__init__("cell-busy", detail, status=503)


class Submitted(Protocol):
    """A submission of a job. `size`: the number of its tasks. `keys`: the keys that no other submission in the same
    transaction may have, such as the name of the job.
    """

    @property
    def size(self) -> int: ...

    @property
    def keys(self) -> set[Key]: ...

    def reset(self) -> None:
        """Reset the values that a transaction set before it was rolled back."""


Item = TypeVar("Item", bound=Submitted)


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item]):
    """A submission that waits to be written. `turn` wakes the thread of the submission when the result is known, or
    when this thread has to write the next group.
    """

    item: Item
    turn: threading.Event = field(default_factory=threading.Event)
    done: bool = False
    error: BaseException | None = None


class GroupCommit(Generic[Item]):
    """Collects the submissions to one cell that arrive in this process, and writes several of them in one
    transaction. Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting[Item]] = deque()
        self._led = False

    def write(self, item: Item, write: Callable[[Sequence[Item]], None]) -> None:
        """Write `item` by calling `write`, possibly together with other items in one transaction.

        Raises the error that `write` raises for this item. Raises `Rejected` (503) if the item waits longer than
        `LONGEST_WAIT_S` seconds.
        """
        own = _Waiting(item)
        with self._lock:
            leads = not self._led
            if leads:
                self._led = True
            else:
                self._waiting.append(own)
        if not leads and not own.turn.wait(LONGEST_WAIT_S):
            with self._lock:
                withdrawn = own in self._waiting
                if withdrawn:
                    self._waiting.remove(own)
            if withdrawn:
                detail = "the cell is busy with earlier submissions, and nothing was stored; try again in a few seconds"
                raise Rejected("cell-busy", detail, status=503)
            own.turn.wait()  # a transaction that may contain it is under way
        if not own.done:
            self._lead(own, write)
        if own.error is not None:
            raise own.error

    def _lead(self, own: _Waiting[Item], write: Callable[[Sequence[Item]], None]) -> None:
        """Write one group of submissions. The first one is `own`, the submission of this thread. Then wake the next
        waiting thread, which writes the next group.
        """
        group = [own]
        try:
            with self._lock:
                group += self._taken(own)
            _write(group, write)
        except BaseException as error:
            for one in group:
                one.error = one.error or error
            raise
        finally:
            with self._lock:
                following = self._waiting.popleft() if self._waiting else None
                self._led = following is not None
            for other in group:
                other.done = True
                other.turn.set()
            if following is not None:
                following.turn.set()

    def _taken(self, own: _Waiting[Item]) -> list[_Waiting[Item]]:
        """Remove from the queue the submissions that are written together with `own`, and return them. Two submissions
        with the same key, such as the name of a job, are not written together.
        """
        taken: list[_Waiting[Item]] = []
        left: deque[_Waiting[Item]] = deque()
        keys = set(own.item.keys)
        tasks = own.item.size
        for one in self._waiting:
            fits = len(taken) + 1 < MOST_TOGETHER and tasks + one.item.size <= CHUNK
            if fits and keys.isdisjoint(one.item.keys):
                taken.append(one)
                keys |= one.item.keys
                tasks += one.item.size
            else:
                left.append(one)
        self._waiting = left
        return taken


def _write(group: Sequence[_Waiting[Item]], write: Callable[[Sequence[Item]], None]) -> None:
    """Write the submissions of the group together. If PostgreSQL rejects the group because of one submission, write
    each submission alone.
    """
    try:
        write([one.item for one in group])
    except (OperationalError, psycopg.OperationalError) as error:  # PostgreSQL is away or busy, for all of them alike
        for one in group:
            one.error = error
    except Exception as error:  # noqa: BLE001 - raised by the thread of the submission
        if len(group) == 1:
            group[0].error = error
            return
        for one in group:
            one.item.reset()
            _write([one], write)


_groups: dict[int, GroupCommit[Any]] = defaultdict(GroupCommit)
_bulk_turns: dict[int, threading.Lock] = defaultdict(threading.Lock)


def of_cell(cell_id: int) -> GroupCommit[Any]:
    """Return the `GroupCommit` of this process for a cell."""
    with _lock:
        return _groups[cell_id]


@contextmanager
def bulk_turn(cell_id: int) -> Iterator[None]:
    """Let one thread of this process at a time run the `with` block, which writes a part of a bulk submission.

    PostgreSQL gives the lock of a cell to its waiters in order. Without turns, all bulk submissions of a process would
    wait in front of a single submission. Raises `TurnLost` (503) if the turn does not come within `BULK_WAIT_S`.
    """
    with _lock:
        turn = _bulk_turns[cell_id]
    if not turn.acquire(timeout=BULK_WAIT_S):
        raise TurnLost
    try:
        yield
    finally:
        turn.release()
