"""Limits password hashing: each process computes at most one hash per core at the same time. Other callers wait.

A hash takes about 0.4 s of CPU on purpose, so many sign-ins at once could occupy all cores. All password checks and
password changes use this module. A waiting request returns its database connection to the pool. A request inside a
transaction cannot do this, so it is served before others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib.auth.hashers import PBKDF2PasswordHasher

from portal.database_time_limits import give_connections_back
from portal.http.outages import Overloaded

_LONGEST_WAIT_S = 10.0
_MOST_WAITING = 200


class HashingSlots:
    """A limit on password hashing: at most `slots` callers compute a hash at the same time.

    At most `most_waiting` other callers wait. Each of them waits at most `longest_wait_s` seconds.
    """

    def __init__(self, slots: int, *, most_waiting: int, longest_wait_s: float) -> None:
        self._slots, self._most_waiting, self._longest_wait_s = slots, most_waiting, longest_wait_s
        self._changed = threading.Condition()
        self._running = self._waiting = self._urgent = 0

    @contextmanager
    def turn(self, *, urgent: bool = False) -> Iterator[None]:
        """Wait until this caller may compute a hash, and let it compute the hash in the `with` block.

        `urgent`: serve this caller before others. Raises `Overloaded` if too many callers wait, or if this caller
        waited too long.
        """
        self._begin(urgent)
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _begin(self, urgent: bool) -> None:
        with self._changed:
            if self._waiting >= self._most_waiting:
                raise Overloaded(f"Cannot check the password: {self._waiting} other sign-ins already wait.")
            self._waiting += 1
            self._urgent += urgent
            began = time.monotonic()
            try:
                free = self._changed.wait_for(lambda: self._free(urgent), self._longest_wait_s)
            finally:
                self._waiting -= 1
                self._urgent -= urgent
            if not free:
                waited_s = time.monotonic() - began
                raise Overloaded(f"Cannot check the password: no CPU core was free within {waited_s:.0f} s.")
            self._running += 1

    def _free(self, urgent: bool) -> bool:
        return self._running < self._slots and (urgent or not self._urgent)


_turns = HashingSlots(len(os.sched_getaffinity(0)), most_waiting=_MOST_WAITING, longest_wait_s=_LONGEST_WAIT_S)


class BoundedHasher(PBKDF2PasswordHasher):
    """Django's password hasher, with the same format and strength. `HashingSlots` limits how many hashes are computed
    at the same time.
    """

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        in_transaction = give_connections_back()
        with _turns.turn(urgent=in_transaction):
            return super().encode(password, salt, iterations)
