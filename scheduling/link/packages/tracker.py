"""Choose from where a machine downloads a package: from other machines or the package store (§3.2). No I/O.

    store ─► few machines ─► each serves `fanout` others at a time ─► … the number of holders grows geometrically

Each shard has a tracker. Shards announce to each other which machines have a package. If the data of a tracker is lost,
machines use the store and report again what they have. Times are seconds of any monotonic clock.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

# Most digests, and most holders of a digest, that a tracker stores. It does not need all of ten thousand holders.
MAX_DIGESTS = 2_000
MAX_HOLDERS = 500
# A source that failed is not offered to the same machine again for this time. A busy source is not offered to any
# machine for a shorter time.
AVOIDED_S = 60.0
BUSY_S = 2.0
# If this number of different machines report within `AVOIDED_S` that a source fails, it is not offered any more. One
# machine is not enough, because a machine could report every source.
STRIKES = {"mismatch": 2}
STRIKES_OTHERWISE = 3
# The longest time of a download: `SLOT_S`, plus the size divided by this rate. Then its slot is free again.
SLOT_S, SLOT_BYTES_S = 30.0, 2 * 2**20
# Most holders among which peers are chosen, and the number of waiting machines that should ask again per second.
LOOKED_AT = 64
WAITING_A_SECOND = 300
STORE = 0  # stands for the store in place of a machine's id


@dataclass(frozen=True, slots=True)
class Peer:
    """A machine that has a package and serves it to other machines."""

    machine_id: int
    address: str
    port: int
    rack: str = ""


@dataclass(frozen=True, slots=True)
class SourcesOffer:
    """The sources of a package that are offered to a machine, best first. If there is no source, the machine asks
    again after `retry_after_s` seconds.
    """

    peers: tuple[Peer, ...] = ()
    store: bool = False
    retry_after_s: float = 0.0


@dataclass(slots=True)
class _Swarm:
    """The tracker's data about one package: machines that have it, downloads in progress, and recent failed downloads
    from other machines.
    """

    holders: dict[int, Peer] = field(default_factory=dict)
    fetching: dict[int, tuple[int, ...]] = field(default_factory=dict)  # machine -> offered sources
    strikes: dict[int, dict[int, float]] = field(default_factory=dict)  # source -> machine it failed -> until
    waiting: set[int] = field(default_factory=set)
    avoided: dict[tuple[int, int], float] = field(default_factory=dict)  # (machine, source) -> until


class Tracker:
    """The tracker of a shard, which records which machines have which packages.

    `fanout`: how many machines may download from one machine at the same time. `store_slots`: how many machines may
    download from the store at the same time. `offered`: how many peers are offered to a machine at most.
    """

    def __init__(
        self, *, rng: random.Random, fanout: int = 4, store_slots: int = 8, offered: int = 3, retry_s: float = 1.0
    ) -> None:
        self._rng = rng
        self._fanout, self._store_slots, self._offered, self._retry_s = fanout, store_slots, offered, retry_s
        self._swarms: OrderedDict[str, _Swarm] = OrderedDict()
        self._full: dict[int, float] = {}  # source -> until: it reported that all its slots are in use
        self._serving: dict[int, dict[tuple[str, int], float]] = {}  # source -> (digest, machine) -> until

    def knows(self, digest: str) -> bool:
        """Return whether the tracker has data about a package."""
        return digest in self._swarms

    def holders(self, digest: str) -> list[Peer]:
        """Return the machines that have the package, in the order of their reports."""
        swarm = self._swarms.get(digest)
        return list(swarm.holders.values()) if swarm else []

    def have(self, digest: str, peers: Iterable[Peer]) -> None:
        """Record that these machines have the package. A machine whose port is 0 does not serve it to others."""
        swarm = self._swarm(digest)
        for peer in peers:
            self._release(digest, peer.machine_id)
            swarm.strikes.pop(peer.machine_id, None)
            if not peer.port:
                swarm.holders.pop(peer.machine_id, None)
                continue
            if len(swarm.holders) >= MAX_HOLDERS and peer.machine_id not in swarm.holders:
                del swarm.holders[self._rng.choice(list(swarm.holders))]
            swarm.holders[peer.machine_id] = peer

    def gone(self, digest: str, machine_id: int) -> None:
        """Record that a machine no longer has the package."""
        if digest in self._swarms:
            self._swarms[digest].holders.pop(machine_id, None)

    def left(self, machine_id: int) -> None:
        """Forget a machine whose connection has ended, with its packages and downloads."""
        self._serving.pop(machine_id, None)
        for digest, swarm in self._swarms.items():
            swarm.holders.pop(machine_id, None)
            self._release(digest, machine_id)

    def failed(self, digest: str, machine_id: int, address: str, port: int, reason: str, *, now: float) -> int | None:
        """Record that a machine could not download a package from the peer with this address and port. `reason`:
        `mismatch` (the content has another digest), `slow`, `unreachable`, `busy` or `refused`.

        Ignore a peer that was not offered to the machine. Remove a peer with too many failures until it reports the
        package again. Return the machine id of a removed peer, otherwise None.
        """
        swarm = self._swarm(digest)
        offered = swarm.fetching.get(machine_id, ())
        self._release(digest, machine_id)
        for source in offered:
            peer = swarm.holders.get(source)
            if peer is None or (peer.address, peer.port) != (address, port):
                continue
            # The machine tries its other offers before it asks again, so the next source keeps a slot for it.
            self._keep(swarm, digest, machine_id, tuple(other for other in offered if other != source), now=now)
            if reason == "busy":
                self._full[source] = now + BUSY_S
                return None
            swarm.avoided[machine_id, source] = now + AVOIDED_S
            struck = {who: until for who, until in swarm.strikes.get(source, {}).items() if until > now}
            swarm.strikes[source] = struck | {machine_id: now + AVOIDED_S}
            if len(swarm.strikes[source]) >= STRIKES.get(reason, STRIKES_OTHERWISE):
                del swarm.holders[source]
                return source
        return None

    def sources(self, digest: str, machine_id: int, *, rack: str = "", size_bytes: int = 0, now: float) -> SourcesOffer:
        """Return the sources from which a machine can download a package, and reserve a download slot at the first
        one. Slots that were reserved for an earlier download of the same package by this machine are released.
        """
        swarm = self._swarm(digest)
        self._release(digest, machine_id)
        for key in [key for key, until in swarm.avoided.items() if until <= now]:
            del swarm.avoided[key]
        free = []
        for holder in self._some(swarm):
            if holder.machine_id == machine_id or (machine_id, holder.machine_id) in swarm.avoided:
                continue
            load = self._load(holder.machine_id, now)
            if load < self._fanout:
                far = not rack or holder.rack != rack
                free.append((far, load, self._rng.random(), holder))
        peers = tuple(holder for *_, holder in sorted(free, key=lambda item: item[:3])[: self._offered])
        if not peers and self._load(STORE, now) >= self._store_slots:
            swarm.waiting.add(machine_id)
            crowd = max(1.0, len(swarm.waiting) / WAITING_A_SECOND)
            return SourcesOffer(retry_after_s=self._retry_s * crowd * self._rng.uniform(0.5, 1.5))
        offered = tuple(peer.machine_id for peer in peers) or (STORE,)
        self._keep(swarm, digest, machine_id, offered, size_bytes=size_bytes, now=now)
        return SourcesOffer(peers, store=not peers)

    def _keep(
        self, swarm: _Swarm, digest: str, machine_id: int, offered: tuple[int, ...], *, size_bytes: int = 0, now: float
    ) -> None:
        """Store the sources that are `offered` to the machine `machine_id`, and reserve a download slot at the first of
        them. A larger package reserves its slot for longer.
        """
        if offered:
            swarm.fetching[machine_id] = offered
            until = now + SLOT_S + size_bytes / SLOT_BYTES_S
            self._serving.setdefault(offered[0], {})[digest, machine_id] = until

    def _some(self, swarm: _Swarm) -> list[Peer]:
        """Return the machines that have the package, or a random sample if there are many."""
        every = list(swarm.holders.values())
        return every if len(every) <= LOOKED_AT else self._rng.sample(every, LOOKED_AT)

    def _load(self, source: int, now: float) -> int:
        if (full := self._full.get(source)) is not None:
            if now < full:
                return self._fanout
            del self._full[source]
        serving = self._serving.get(source)
        if not serving:
            return 0
        for key in [key for key, until in serving.items() if until <= now]:
            del serving[key]
        return len(serving)

    def _release(self, digest: str, machine_id: int) -> None:
        swarm = self._swarms[digest]
        swarm.waiting.discard(machine_id)
        for source in swarm.fetching.pop(machine_id, ()):
            if serving := self._serving.get(source):
                serving.pop((digest, machine_id), None)

    def _swarm(self, digest: str) -> _Swarm:
        swarm = self._swarms.get(digest)
        if swarm is None:
            swarm = self._swarms[digest] = _Swarm()
            while len(self._swarms) > MAX_DIGESTS:
                self._swarms.popitem(last=False)
        else:
            self._swarms.move_to_end(digest)
        return swarm
