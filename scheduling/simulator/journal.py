"""The journal of a simulation: a digest of all events, and the newest events."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import NamedTuple

from scheduling.core.vocabulary import events

KEPT = 1_000


class Record(NamedTuple):
    """One event of a simulated journal. `time`: seconds since the epoch of the simulation."""

    revision: int
    time: float
    event: events.Event


class Journal:
    """The journal of one simulation. `count`: how many events it has received. `recent`: the newest of them."""

    def __init__(self) -> None:
        self.count = 0
        self.recent: deque[Record] = deque(maxlen=KEPT)
        self._hash = hashlib.blake2b(digest_size=16)

    def append(self, revision: int, time: float, event: events.Event) -> None:
        self.count += 1
        self.recent.append(Record(revision, time, event))
        self._hash.update(b"%d %a " % (revision, time) + events.encode(event))

    def digest(self) -> str:
        """Return a hexadecimal digest of all events with their revisions and times. Two simulations with equal digests
        have bit-identical journals.
        """
        return self._hash.hexdigest()

    def __deepcopy__(self, memo: dict[int, object]) -> Journal:
        copied = Journal()
        copied.count, copied.recent, copied._hash = self.count, self.recent.copy(), self._hash.copy()
        return copied
