"""A simulation of machines that all fetch one package at once: the product's code chooses sources, the network is fake.

    machine ── Choosing.step ─► AskForSources ─► Tracker.sources
            └─ Choosing.step ─► Try ─► a transfer that shares the line of its source with other transfers

The bandwidth of a source is divided equally among its transfers, and no transfer is faster than the line of its
receiver. Time is virtual, and nothing is written. The same seed gives the same figures.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import Final

from borglet.messages import PackageSources, PeerAddress
from borglet.packages.peers import PeerSettings
from borglet.packages.source_choice import BUSY, THE_STORE, AskForSources, Choosing, FetchPatience, GiveUp, Pause, Try
from scheduling.link.packages.tracker import Peer, Tracker

DIGEST: Final = "sha256:" + "a" * 64
PORT = 7000


@dataclass(frozen=True, slots=True)
class World:
    """The parameters of the simulated cell."""

    machines: int
    size_bytes: int = 200 * 2**20
    line_bytes_s: float = 125e6  # bytes per second of a machine in each direction: 1 Gbit/s
    store_bytes_s: float = 125e6
    install_s: float = 1.0  # unpacking, between the last byte and serving others
    ask_s: float = 0.01  # until the link answers a request for sources
    spread_s: float = 0.5  # all machines begin within this time
    liars: float = 0.0  # share of machines that send wrong content
    away: float = 0.0  # share of machines that cannot be reached
    seed: int = 1


@dataclass(slots=True)
class Outcome:
    installed_at: list[float] = field(default_factory=list)  # seconds, ascending
    store_copies: int = 0
    busiest_store: int = 0  # largest number of concurrent transfers from the store
    asked: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    gave_up: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Transfer:
    receiver: int
    source: int
    left: float
    rate: float = 0.0
    since: float = 0.0
    version: int = 0


class Swarm:
    """A simulation of N machines that download a package from a store and from each other. The store is number 0."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.seed)
        self._tracker = Tracker(rng=random.Random(world.seed + 1))
        self._uploads = PeerSettings().uploads
        self._now = 0.0
        self._events: list[tuple[float, int, str, int, object]] = []
        self._order = itertools.count()
        self._choosing: dict[int, Choosing] = {}
        self._trying: dict[int, PeerAddress] = {}
        self._sending: dict[int, dict[int, _Transfer]] = {}
        self._has: set[int] = set()
        numbers = range(1, world.machines + 1)
        self._liars = set(self._rng.sample(numbers, round(world.liars * world.machines)))
        honest = [number for number in numbers if number not in self._liars]
        self._away = set(self._rng.sample(honest, round(world.away * world.machines)))
        self.outcome = Outcome()

    def run(self) -> Outcome:
        for machine in range(1, self._world.machines + 1):
            self._at(self._rng.uniform(0, self._world.spread_s), "begin", machine)
        while self._events:
            self._now, _, what, machine, detail = heapq.heappop(self._events)
            if what == "begin":
                rng = random.Random(f"{self._world.seed}/{machine}")
                self._choosing[machine] = Choosing(FetchPatience(), rng, now=self._now)
                self._step(machine)
            elif what == "step":
                self._step(machine)
            elif what == "answer":
                self._answer(machine)
            elif what == "arrive":
                self._arrive(machine, detail)
            else:
                self._installed(machine)
        return self.outcome

    def _at(self, delay_s: float, what: str, machine: int, detail: object = None) -> None:
        heapq.heappush(self._events, (self._now + delay_s, next(self._order), what, machine, detail))

    def _step(self, machine: int) -> None:
        match self._choosing[machine].step(self._now):
            case AskForSources():
                self.outcome.asked += 1
                self._at(self._world.ask_s, "answer", machine)
            case Try(source):
                self._try(machine, source)
            case Pause(seconds):
                self._at(seconds, "step", machine)
            case GiveUp(why):
                self.outcome.gave_up.append(why)

    def _answer(self, machine: int) -> None:
        offer = self._tracker.sources(DIGEST, machine, size_bytes=self._world.size_bytes, now=self._now)
        peers = [PeerAddress(peer.address, peer.port) for peer in offer.peers]
        store = f"/packages/{DIGEST}" if offer.store else ""
        self._choosing[machine].answered(PackageSources(peers, store, "", offer.retry_after_s))
        self._step(machine)

    # -- transfers

    def _try(self, machine: int, source: PeerAddress) -> None:
        number = int(source.address) if source != THE_STORE else 0
        sending = self._sending.setdefault(number, {})
        if number in self._away:
            self._fail(machine, source, "unreachable")
        elif number and len(sending) >= self._uploads:
            self._fail(machine, source, BUSY)
        else:
            self._trying[machine] = source
            sending[machine] = _Transfer(machine, number, float(self._world.size_bytes), since=self._now)
            if not number:
                self.outcome.store_copies += 1
                self.outcome.busiest_store = max(self.outcome.busiest_store, len(sending))
            self._share(number)

    def _share(self, source: int) -> None:
        """Divide the bandwidth of a source equally among its transfers, and schedule their new ends."""
        sending = self._sending[source]
        if not sending:
            return
        line = self._world.line_bytes_s if source else self._world.store_bytes_s
        rate = min(self._world.line_bytes_s, line / len(sending))
        for transfer in sending.values():
            transfer.left -= transfer.rate * (self._now - transfer.since)
            transfer.rate, transfer.since = rate, self._now
            transfer.version += 1
            detail = (transfer, transfer.version)
            self._at(max(0.0, transfer.left) / rate, "arrive", transfer.receiver, detail)

    def _arrive(self, machine: int, detail: object) -> None:
        assert isinstance(detail, tuple)
        transfer, version = detail
        if transfer.version != version:
            return  # the rate has changed since this end was scheduled
        del self._sending[transfer.source][machine]
        self._share(transfer.source)
        if transfer.source in self._liars:
            self._fail(machine, self._trying[machine], "mismatch")
        else:
            self._at(self._world.install_s, "installed", machine)

    def _fail(self, machine: int, source: PeerAddress, reason: str) -> None:
        self.outcome.failed[reason] = self.outcome.failed.get(reason, 0) + 1
        self._choosing[machine].failed(source, reason, "")
        self._tracker.failed(DIGEST, machine, source.address, source.port, reason, now=self._now)
        self._step(machine)

    def _installed(self, machine: int) -> None:
        self._has.add(machine)
        self.outcome.installed_at.append(self._now)
        self._tracker.have(DIGEST, [Peer(machine, str(machine), PORT)])
