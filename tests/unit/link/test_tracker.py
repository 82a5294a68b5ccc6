"""Tests of the tracker, which names the peers from which a machine downloads a package, in virtual time."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from scheduling.link.packages.tracker import AVOIDED_S, BUSY_S, MAX_HOLDERS, SLOT_S, Peer, SourcesOffer, Tracker

D = "sha256:" + "a" * 64


def peer(number: int, *, rack: str = "r0", port: int = 7000) -> Peer:
    return Peer(number, f"10.0.{number // 250}.{number % 250}", port, rack)


def tracker(**given: int) -> Tracker:
    return Tracker(rng=random.Random(1), **given)


def test_the_first_go_to_the_store_and_others_come_back() -> None:
    told = tracker(store_slots=2)
    offers = [told.sources(D, machine, now=0.0) for machine in (1, 2, 3)]
    assert [offer.store for offer in offers] == [True, True, False]
    assert offers[2].peers == ()
    assert 0.5 <= offers[2].retry_after_s <= 1.5
    told.have(D, [peer(1)])
    assert told.sources(D, 3, now=1.0) == SourcesOffer((peer(1),))


def test_a_machine_serves_no_more_than_its_fanout_at_a_time() -> None:
    told = tracker(fanout=2, store_slots=1)
    told.have(D, [peer(1)])
    assert [told.sources(D, machine, now=0.0).peers for machine in (2, 3)] == [(peer(1),)] * 2
    assert told.sources(D, 4, now=0.0).store
    assert told.sources(D, 5, now=0.0).retry_after_s
    told.have(D, [peer(2)])  # the machine has the package now: its slot is free, and it serves others
    assert {p.machine_id for p in told.sources(D, 5, now=0.0).peers} == {1, 2}


def test_asking_again_does_not_take_a_second_slot() -> None:
    told = tracker(fanout=1)
    told.have(D, [peer(1)])
    for _ in range(5):
        assert told.sources(D, 2, now=0.0).peers == (peer(1),)


def test_a_slot_whose_machine_fell_silent_is_free_again() -> None:
    told = tracker(fanout=1, store_slots=0)
    told.have(D, [peer(1)])
    told.sources(D, 2, size_bytes=0, now=0.0)
    assert told.sources(D, 3, now=SLOT_S - 1).peers == ()
    assert told.sources(D, 3, now=SLOT_S + 1).peers == (peer(1),)


def test_peers_of_the_same_rack_come_first_then_idle_ones() -> None:
    told = tracker()
    told.have(D, [peer(1, rack="a"), peer(2, rack="b"), peer(3, rack="b"), peer(4, rack="c")])
    first, second, *_ = told.sources(D, 9, rack="b", now=0.0).peers
    assert {first.machine_id, second.machine_id} == {2, 3}
    used = Counter([first.machine_id])
    used.update(told.sources(D, 100 + n, rack="none", now=0.0).peers[0].machine_id for n in range(8))
    assert max(used.values()) - min(used.values()) <= 1


def test_a_peer_that_failed_a_machine_is_not_offered_to_it_for_a_while() -> None:
    told = tracker(store_slots=1)
    told.have(D, [peer(1)])
    told.sources(D, 2, now=0.0)
    told.failed(D, 2, peer(1).address, 7000, "slow", now=0.0)
    assert told.sources(D, 2, now=1.0) == SourcesOffer(store=True)
    assert told.sources(D, 3, now=1.0).peers == (peer(1),), "others may try it"
    assert told.sources(D, 2, now=AVOIDED_S + 1).peers == (peer(1),)


def test_a_peer_that_was_busy_is_offered_again_soon() -> None:
    told = tracker(store_slots=1)
    told.have(D, [peer(1)])
    told.sources(D, 2, now=0.0)
    told.failed(D, 2, peer(1).address, 7000, "busy", now=0.0)
    assert told.sources(D, 3, now=1.0).store, "nobody is sent there for a moment"
    assert told.sources(D, 2, now=BUSY_S + 0.1).peers == (peer(1),)


def test_a_machine_that_a_peer_failed_goes_on_with_the_next_offer_which_keeps_a_slot() -> None:
    told = tracker(fanout=1, store_slots=0)
    told.have(D, [peer(1), peer(2)])
    first = told.sources(D, 5, now=0.0).peers[0]
    told.failed(D, 5, first.address, first.port, "slow", now=0.0)
    assert told.sources(D, 6, now=0.0).peers == (first,), "the second one serves the machine that was failed"


@pytest.mark.parametrize("reason, machines", [("mismatch", 2), ("slow", 3), ("unreachable", 3), ("whatever", 3)])
def test_a_peer_that_failed_several_machines_is_offered_to_nobody_until_it_says_so_again(
    reason: str, machines: int
) -> None:
    told = tracker()
    told.have(D, [peer(1)])
    for machine in range(10, 10 + machines):
        assert told.sources(D, machine, now=0.0).peers == (peer(1),)
        dropped = told.failed(D, machine, peer(1).address, 7000, reason, now=0.0)
        assert dropped == (1 if machine == 9 + machines else None)
    assert told.sources(D, 50, now=0.0).store
    told.have(D, [peer(1)])
    assert told.sources(D, 51, now=0.0).peers == (peer(1),)


def test_one_machine_cannot_speak_ill_of_others() -> None:
    told = tracker()
    told.have(D, [peer(1), peer(2)])
    for _ in range(9):
        told.failed(D, 66, peer(1).address, 7000, "mismatch", now=0.0)  # the peer was not offered to this machine
        told.sources(D, 66, now=0.0)
        told.failed(D, 66, peer(2).address, 7000, "mismatch", now=0.0)
    assert {p.machine_id for p in told.sources(D, 5, now=0.0).peers} == {1, 2}


def test_a_peer_that_is_away_has_it_no_more_or_serves_nobody_is_not_offered() -> None:
    told = tracker(store_slots=9)
    told.have(D, [peer(1), peer(2), peer(3, port=0)])
    told.left(1)
    told.gone(D, 2)
    assert told.sources(D, 9, now=0.0) == SourcesOffer(store=True)
    told.left(9)
    assert [told.sources(D, 20 + n, now=0.0).store for n in range(9)] == [True] * 9


def test_a_machine_is_never_sent_to_itself() -> None:
    told = tracker()
    told.have(D, [peer(1)])
    assert told.sources(D, 1, now=0.0).store


def test_what_is_remembered_is_bounded() -> None:
    told = tracker()
    told.have(D, (peer(n) for n in range(1, 3 * MAX_HOLDERS)))
    assert len(told.holders(D)) == MAX_HOLDERS
    for n in range(3000):
        told.have(f"sha256:{n}", [peer(1)])
    assert not told.knows(D)


@dataclass
class Fleet:
    """A simulation of machines that all download one package at once.

    Each machine sends and receives `rate` bytes per second. The store sends `store_rate` bytes per second.
    """

    machines: int
    size: int = 100 * 2**20
    rate: float = 100 * 2**20
    store_rate: float = 800 * 2**20
    broken: frozenset[int] = frozenset()  # machines that report the package and deliver nothing
    served: Counter[int] = field(default_factory=Counter)
    at_once: Counter[int] = field(default_factory=Counter)
    most_at_once: Counter[int] = field(default_factory=Counter)

    def run(self, told: Tracker, *, fanout: int = 4, store_slots: int = 8) -> float:
        """Run the simulation, and return the time in seconds when the last machine has the package."""
        done: set[int] = set()
        events = [(0.0, machine, "ask", 0) for machine in range(1, self.machines + 1)]
        now = 0.0
        while events:
            now, machine, kind, source = heapq.heappop(events)
            if kind == "come":
                self.at_once[source] -= 1
                if source in self.broken:
                    failed = self._peer(source)
                    told.failed(D, machine, failed.address, failed.port, "slow", now=now)
                    heapq.heappush(events, (now, machine, "ask", 0))
                    continue
                self.served[source] += 1
                done.add(machine)
                told.have(D, [self._peer(machine)])
                continue
            offer = told.sources(D, machine, rack=f"r{machine % 25}", size_bytes=self.size, now=now)
            if not offer.peers and not offer.store:
                heapq.heappush(events, (now + offer.retry_after_s, machine, "ask", 0))
                continue
            source = offer.peers[0].machine_id if offer.peers else 0
            self.at_once[source] += 1
            self.most_at_once[source] = max(self.most_at_once[source], self.at_once[source])
            share = self.rate / fanout if source else min(self.rate, self.store_rate / store_slots)
            took = 2.0 if source in self.broken else self.size / share
            heapq.heappush(events, (now + took, machine, "come", source))
        assert done == set(range(1, self.machines + 1))
        return now

    def _peer(self, machine: int) -> Peer:
        return peer(machine, rack=f"r{machine % 25}")


@pytest.mark.parametrize("machines", [1, 10, 1000])
def test_a_thousand_machines_do_not_melt_one_store(machines: int) -> None:
    fleet = Fleet(machines)
    took = fleet.run(tracker())
    assert fleet.served[0] <= 8 + machines / 10, "nearly all comes from peers"
    assert fleet.most_at_once[0] <= 8
    assert all(most <= 4 for source, most in fleet.most_at_once.items() if source)
    # Each round multiplies the machines with the package by five, and takes as long as four copies in sequence.
    rounds = 1 + math.ceil(math.log(max(1, machines / 8), 5))
    assert took <= 1 + rounds * (4 * fleet.size / fleet.rate + 2)


def test_peers_that_deliver_nothing_delay_the_others_little() -> None:
    broken = frozenset(range(1, 101))
    fleet = Fleet(1000, broken=broken)
    took = fleet.run(tracker())
    assert took <= 120
    assert fleet.served[0] <= 200
