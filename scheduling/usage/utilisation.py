"""Sums of capacity, limits, reservations and usage of a cell. The master publishes them in Redis during reclamation.

borg:reclaim:<cell>   JSON of `UtilisationFigures`, which expires a minute after the last update
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from scheduling.journal import wakeups

_KEEP_S = 60


class UtilisationFigures(msgspec.Struct, frozen=True):
    """The utilisation of a cell at the time `at` (seconds since the epoch, by Redis' clock), for pages and Prometheus.

    `capacity` (of machines that are up), `limit`, `reservation`, `usage`: sums by name of the resource, in the
    resource's unit. The usage of CPU includes the CPU time that tasks did not get because they were throttled.
    `measured`: the number of running tasks with a recent usage sample. `short`: the number of machines that use too
    much RAM or disk.
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
        """Return the reclaimed share of a resource: the part of the limits (0 to 1) that is not reserved. Return 0 if
        there are no limits.
        """
        limit = self.limit[resource]
        return 1 - self.reservation[resource] / limit if limit else 0.0


def publish(cell_id: int, figures: UtilisationFigures) -> None:
    """Publish the figures in Redis. Raises `redis.RedisError` if Redis cannot be reached."""
    wakeups.client().set(_key(cell_id), msgspec.json.encode(figures), ex=_KEEP_S)


def figures_of(cell_ids: Iterable[int]) -> dict[int, UtilisationFigures]:
    """Return the newest figures of each cell, by cell id. Cells without figures from the last minute are left out.

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
