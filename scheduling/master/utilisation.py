"""Capacity, limits, reservations and usage of a cell, in Redis, published by reclamation.

borg:reclaim:<cell>   JSON of `UtilisationFigures`, gone by itself a minute after the last look
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from scheduling.journal import wakeups

_KEEP_S = 60


class UtilisationFigures(msgspec.Struct, frozen=True):
    """Utilisation of a cell at one look, for people and Prometheus. `at`: Redis' clock, seconds since the epoch.

    `capacity` (of machines that are up), `limit`, `reservation`, `usage`: sums by resource name, in its unit; of CPU
    usage is demand, what throttling denied included.
    `measured`: running tasks with a fresh sample. `short`: machines that use too much RAM or disk.
    """

    at: float
    setting: str
    running: int
    measured: int
    short: int
    capacity: dict[str, int]
    limit: dict[str, int]
    reservation: dict[str, int]
    usage: dict[str, int]

    def reclaimed(self, resource: str) -> float:
        """The share of the limits that others may be placed in; 0 where nothing is promised."""
        limit = self.limit[resource]
        return 1 - self.reservation[resource] / limit if limit else 0.0


def publish(cell_id: int, figures: UtilisationFigures) -> None:
    """Publish the figures in Redis. Raises `redis.RedisError`."""
    wakeups.client().set(_key(cell_id), msgspec.json.encode(figures), ex=_KEEP_S)


def figures_of(cell_ids: Iterable[int]) -> dict[int, UtilisationFigures]:
    """Return the newest figures of each cell, without cells that have none from the last minute.

    Raises `redis.RedisError`.
    """
    ids = list(cell_ids)
    detail = wakeups.client().mget([_key(cell_id) for cell_id in ids]) if ids else []
    return {
        cell_id: msgspec.json.decode(value, type=UtilisationFigures)
        for cell_id, value in zip(ids, detail, strict=True)
        if value is not None
    }


def _key(cell_id: int) -> str:
    return f"borg:reclaim:{cell_id}"
