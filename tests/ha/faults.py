"""The faults: each is a target and a way to harm it, such as `redis-leader-kill`.

kill    the process ends, and its host starts it again after a second
pause   all processes of the service stop (SIGSTOP) for a while
cut     no packet reaches or leaves the host for a while
off     all processes of the host end, and the host starts them again after a while
lossy   the network loses every fifth packet of the host, in each direction
slow    the network carries 2 Mbit/s of the host, in each direction
full    the disk of the engines of the host is full
skew    the process starts again with a clock that is 45 s ahead, and later with the right clock
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.ha.cell import Cell
from tests.ha.network import Host
from tests.ha.services import Service

# For so long each fault is watched. A paused process stops and a host is cut off for longer than the lease of Patroni,
# which is 20 s.
_LONG_S = 30.0
HOLD_S: Mapping[str, float] = {"kill": 12.0}  # the others: _LONG_S
_LOST_PERCENT, _SLOW_KILOBITS_PER_S, _SKEW_S = 20, 2_000, 45

Target = Callable[[Cell, random.Random], tuple[Host | None, str]]


def _any(service: str) -> Target:
    return lambda cell, rng: (rng.choice(cell.control), service)


# Clocks are wrong for processes of Borg Portal alone. The engines take no time of day from each other.
_ENGINES = {"postgres-leader", "etcd-leader", "redis-leader"}


TARGETS: Mapping[str, Target] = {
    "postgres-leader": lambda cell, _: (cell.databases.leader(), "postgres"),
    "etcd-leader": lambda cell, _: (cell.databases.etcd_leader(), "etcd"),
    "redis-leader": lambda cell, _: (cell.caches.leader(), "redis"),
    "lease-holder": lambda cell, _: (cell.lease_holder(), "master"),
    "link": _any("link"),
    "web": _any("web"),
    "worker": _any("worker"),
    "resolver": _any("resolver"),
    "machine": lambda cell, rng: (rng.choice(cell.machines), "borglet"),
}

Act = Callable[[Cell, Service], None]
# How to begin a fault, and how to end it.
WAYS: Mapping[str, tuple[Act, Act]] = {
    "kill": (lambda _, service: service.kill(), lambda _, service: None),
    "pause": (lambda _, service: service.pause(), lambda _, service: service.resume()),
    "cut": (lambda _, service: service.host.cut_off(), lambda _, service: service.host.heal()),
    "off": (
        lambda cell, service: cell.services.switch_off(service.host),
        lambda cell, service: cell.services.switch_on(service.host),
    ),
    "lossy": (lambda _, service: service.host.lose(_LOST_PERCENT), lambda _, service: service.host.heal()),
    "slow": (lambda _, service: service.host.slow(_SLOW_KILOBITS_PER_S), lambda _, service: service.host.heal()),
    "full": (lambda cell, service: cell.disks.fill(service.host), lambda cell, service: cell.disks.free(service.host)),
    "skew": (lambda _, service: service.skew(_SKEW_S), lambda _, service: service.skew(0)),
}


def _possible(target: str, way: str) -> bool:
    if way == "full":  # only the engines of a control host have a disk of their own
        return target in _ENGINES
    return way != "skew" or target not in _ENGINES


FAULTS: Mapping[str, tuple[str, str]] = {
    f"{target}-{way}": (target, way) for target in TARGETS for way in WAYS if _possible(target, way)
}


@dataclass(frozen=True)
class Injected:
    """A fault that has begun. `began`: monotonic clock."""

    name: str
    cell: Cell
    service: Service
    began: float

    @property
    def hold_s(self) -> float:
        """For how many seconds the fault lasts."""
        return HOLD_S.get(FAULTS[self.name][1], _LONG_S)

    def end(self) -> None:
        WAYS[FAULTS[self.name][1]][1](self.cell, self.service)


def inject(name: str, cell: Cell, rng: random.Random) -> Injected:
    """Begin a fault. Raises `RuntimeError` if the cell has no such target at the moment."""
    target, way = FAULTS[name]
    host, service_name = TARGETS[target](cell, rng)
    if host is None:
        raise RuntimeError(f"{name}: the cell has no {target} at the moment")
    service = cell.services.on(host.name, service_name)
    began = time.monotonic()
    WAYS[way][0](cell, service)
    return Injected(name, cell, service, began)
