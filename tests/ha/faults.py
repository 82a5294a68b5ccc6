"""The faults: each is a target and a way to harm it, such as `redis-leader-kill`.

kill    the process ends, and its host starts it again after a second
pause   all processes of the service stop (SIGSTOP) for a while
cut     no packet reaches or leaves the host for a while
off     the host loses its power: all processes end, and its disk loses what was not synchronised. It starts again later
lossy   the network loses every fifth packet of the host, in each direction
slow    the network carries 2 Mbit/s of the host, in each direction
delay   each packet of the host takes 200 ms longer, in each direction
full    the disk of the engines of the host is full
skew    the process starts again with a clock that is 45 s ahead, and later with the right clock

A fault harms control hosts or machines alone, except for those of a link shard. `tests.ha.planning` chooses the order.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tests.ha.cell import Cell
from tests.ha.network import Host
from tests.ha.services import Service

_LOST_PERCENT, _SLOW_KILOBITS_PER_S, _DELAY_S, SKEW_S = 20, 2_000, 0.2, 45

# The services that the fault should harm. None if the cell has none of them now. The last argument: names of
# hosts that another fault harms, which must be left alone.
Target = Callable[[Cell, random.Random, Collection[str]], Sequence[Service] | None]
ENGINES = {"postgres-leader", "etcd-leader", "redis-leader"}
MACHINES = {"machine", "machines"}  # the targets that leave the control hosts alone


def _leader(find: Callable[[Cell], Host | None], service: str) -> Target:
    def target(cell: Cell, _rng: random.Random, _busy: Collection[str]) -> list[Service] | None:
        host = find(cell)
        return None if host is None else [cell.services.on(host.name, service)]

    return target


def _any(service: str, hosts: int | None = None) -> Target:
    return lambda cell, rng, _: [cell.services.on(rng.choice(cell.control[:hosts]).name, service)]


def _machines(share: float) -> Target:
    """Return a target: this many of the machines at once, but at least one."""

    def target(cell: Cell, rng: random.Random, busy: Collection[str]) -> list[Service] | None:
        free = [host for host in cell.machines if host.name not in busy]
        number = max(1, int((len(cell.machines) - 1) * share))
        return (
            None
            if len(free) < number
            else [cell.services.on(host.name, "borglet") for host in rng.sample(free, number)]
        )

    return target


def _shard(cell: Cell, rng: random.Random, busy: Collection[str]) -> list[Service]:
    """Return a link shard and the Borglets of all machines that are connected to it."""
    host = rng.choice(cell.control)
    connected = [one for one in cell.connected_to(host) if one.name not in busy]
    return [cell.services.on(host.name, "link"), *[cell.services.on(one.name, "borglet") for one in connected]]


TARGETS: Mapping[str, Target] = {
    "postgres-leader": _leader(lambda cell: cell.databases.leader(), "postgres"),
    "etcd-leader": _leader(lambda cell: cell.databases.etcd_leader(), "etcd"),
    "redis-leader": _leader(lambda cell: cell.caches.leader(), "redis"),
    "lease-holder": _leader(lambda cell: cell.lease_holder(), "master"),
    "control": _any("web"),
    "all-control": lambda cell, *_: [cell.services.on(host.name, "web") for host in cell.control],
    "link": _any("link"),
    "web": _any("web"),
    "worker": _any("worker"),
    "resolver": _any("resolver"),
    "beat": _any("beat", 2),
    "shard": _shard,
    "machine": _machines(0.0),
    "machines": _machines(0.5),  # a minority
}

Act = Callable[[Cell, Sequence[Service]], None]


def _each(act: Callable[[Service], None]) -> Act:
    def acts(_cell: Cell, services: Sequence[Service]) -> None:
        for service in services:
            act(service)

    return acts


def _fill(cell: Cell, services: Sequence[Service]) -> None:
    for service in services:
        cell.disks.fill(service.host)
        if service.name == "postgres":
            cell.databases.write_log(service.host)


def _free(cell: Cell, services: Sequence[Service]) -> None:
    for service in services:
        cell.disks.free(service.host)


_heal = _each(lambda service: service.host.heal())
# How to begin a fault, and how to end it.
WAYS: Mapping[str, tuple[Act, Act]] = {
    "kill": (_each(lambda service: service.kill()), _each(lambda service: None)),
    "pause": (_each(lambda service: service.pause()), _each(lambda service: service.resume())),
    "cut": (_each(lambda service: service.host.cut_off()), _heal),
    "off": (
        lambda cell, services: cell.switch_off([service.host for service in services]),
        lambda cell, services: cell.switch_on([service.host for service in services]),
    ),
    "lossy": (_each(lambda service: service.host.lose(_LOST_PERCENT)), _heal),
    "slow": (_each(lambda service: service.host.slow(_SLOW_KILOBITS_PER_S)), _heal),
    "delay": (_each(lambda service: service.host.delay(_DELAY_S)), _heal),
    "full": (_fill, _free),
    "skew": (_each(lambda service: service.skew(SKEW_S)), _each(lambda service: service.skew(0))),
}
_OF_PROCESSES, _OF_HOSTS = {"kill", "pause", "skew"}, {"cut", "off", "lossy", "slow", "delay"}


def _possible(target: str, way: str) -> bool:
    if target == "all-control":  # only power fails everywhere at once
        return way == "off"
    if target == "control":
        return way in _OF_HOSTS
    if target in {"link", "web", "worker", "resolver", "beat"}:  # `control` has the faults of their hosts
        return way in _OF_PROCESSES
    if way == "full":  # only the engines of a control host have a disk of their own
        return target in ENGINES
    # etcd does not use the C library, so libfaketime cannot change its clock.
    return (target, way) != ("etcd-leader", "skew")


FAULTS: Mapping[str, tuple[str, str]] = {
    f"{target}-{way}": (target, way) for target in TARGETS for way in WAYS if _possible(target, way)
}

# A fault lasts for this many seconds: until its effect is there. `down_after_s` of machines is 12 s, the lease of a
# master is 6 s, Redis and HAProxy notice a server that hangs after 2 s, and etcd after 2 to 4 s.
_HOLD_S: Mapping[str, float] = {"kill": 4.0}
_USUAL_HOLD_S = 10.0
_LONGER_HOLD_S: Mapping[str, float] = {
    # Patroni replaces a leader that does not answer when its lease has expired, and its shortest lease is 20 s.
    "postgres-leader-pause": 26.0,
    "postgres-leader-cut": 26.0,
    "postgres-leader-off": 26.0,
    **{f"{target}-{way}": 16.0 for target in ("machine", "machines", "shard") for way in ("pause", "cut", "off")},
}


def hold_s(name: str) -> float:
    """Return for how many seconds a fault lasts."""
    return _LONGER_HOLD_S.get(name, _HOLD_S.get(FAULTS[name][1], _USUAL_HOLD_S))


def harms_machines_alone(name: str) -> bool:
    """Return whether a fault leaves the control hosts alone."""
    return FAULTS[name][0] in MACHINES


@dataclass(frozen=True)
class Injected:
    """A fault that has begun. `began`: monotonic clock."""

    name: str
    cell: Cell
    services: Sequence[Service]
    began: float

    @property
    def hosts(self) -> list[str]:
        return [service.host.name for service in self.services]

    def end(self) -> None:
        WAYS[FAULTS[self.name][1]][1](self.cell, self.services)


def choose(name: str, cell: Cell, rng: random.Random, busy: Collection[str] = ()) -> Sequence[Service] | None:
    """Return the services that a fault will harm, or None if the cell has no such target now. `busy`: names
    of hosts that it must not harm.
    """
    return TARGETS[FAULTS[name][0]](cell, rng, busy)


def inject(name: str, cell: Cell, services: Sequence[Service]) -> Injected:
    """Begin a fault that harms these services."""
    began = time.monotonic()
    WAYS[FAULTS[name][1]][0](cell, services)
    return Injected(name, cell, services, began)
