"""Capacity, limits, reservations and usage of a cell, which reclamation publishes in Redis.

borg:reclaim:<cell>   JSON of `UtilisationFigures`, which expires a minute after the last update
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from scheduling.journal import wakeups

_KEEP_S = 60


class UtilisationFigures(msgspec.Struct, frozen=True):
    """The utilisation of a cell at one moment, for pages and Prometheus. `at`: time of Redis' clock, seconds since
    the epoch.

    `capacity` (of machines that are up), `limit`, `reservation`, `usage`: sums by name of the resource, in its unit.
    The usage of CPU includes time that throttling denied. `measured`: running tasks with a fresh sample. `short`:
    machines that use too much RAM or disk.
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
        """Return the share of the limits that is not reserved, which non-prod tasks may use; 0 without limits."""
        limit = self.limit[resource]
        return 1 - self.reservation[resource] / limit if limit else 0.0


def publish(cell_id: int, figures: UtilisationFigures) -> None:
    """Publish the figures in Redis. Raises `redis.RedisError` if Redis cannot be reached."""
    wakeups.client().set(_key(cell_id), msgspec.json.encode(figures), ex=_KEEP_S)


def figures_of(cell_ids: Iterable[int]) -> dict[int, UtilisationFigures]:
    """Return the newest figures of each cell, without cells that have none from the last minute.

    Raises `redis.RedisError` if Redis cannot be reached.
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
