"""Tests of slots for password hashing, which takes much CPU: a few at once, the rest in a bounded queue."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from portal.http.outages import Overloaded, outage_of
from portal.http.password_hashing import HashingSlots


def test_only_so_many_run_at_once() -> None:
    turns = HashingSlots(2, most_waiting=50, longest_wait_s=30.0)
    lock, running, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal running, most
        with turns.turn():
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.01)
            with lock:
                running -= 1

    with ThreadPoolExecutor(20) as threads:
        for done in [threads.submit(work) for _ in range(40)]:
            done.result()
    assert most == 2


def test_a_full_queue_rejects_at_once_and_a_long_wait_ends() -> None:
    turns = HashingSlots(1, most_waiting=1, longest_wait_s=0.3)
    with turns.turn(), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: turns.turn().__enter__())
        until = time.monotonic() + 5.0
        while not turns._waiting and time.monotonic() < until:
            time.sleep(0.001)
        with pytest.raises(Overloaded, match="1 other sign-ins already wait"), turns.turn():
            pass
        with pytest.raises(Overloaded, match="no CPU core was free within") as late:
            waiting.result()
    outage = outage_of(late.value)
    assert outage is not None
    assert (outage.code, outage.status) == ("overloaded", 503)
    with turns.turn():
        pass


def test_urgent_callers_go_first() -> None:
    turns = HashingSlots(1, most_waiting=50, longest_wait_s=30.0)
    order: list[str] = []

    def work(name: str, urgent: bool) -> None:
        with turns.turn(urgent=urgent):
            order.append(name)

    with ThreadPoolExecutor(4) as threads, turns.turn():
        for number, (name, urgent) in enumerate([("a", False), ("b", False), ("c", True)], start=1):
            threads.submit(work, name, urgent)
            until = time.monotonic() + 5.0
            while turns._waiting < number and time.monotonic() < until:
                time.sleep(0.001)
    assert order[0] == "c"
    assert sorted(order) == ["a", "b", "c"]
