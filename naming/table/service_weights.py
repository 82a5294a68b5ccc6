"""The weights of a service: the shares of the clients that its tracks get. Pure.

    weights of the tracks, {blue: 90, green: 10} ─┐
    weights of the placed tasks of each track ────┴─► ServiceWeights ─► weight of each task in the service's SRV records

The *track* of a job is its label `track`, or else the name of the job. All placed tasks of a track share the weight of
the track in proportion to their own weights. So a track gets its share whatever number of tasks it has. If some of its
tasks do not serve, their part goes to the serving tasks of all tracks. The names of jobs and tasks have the tasks' own
weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import gcd, lcm
from typing import NamedTuple

GREATEST = 65_535  # of an SRV record (RFC 2782)


class WeighedTasks(NamedTuple):
    """Placed tasks of one track that have the same weight of their own."""

    track: str
    weight: int
    number: int


class ServiceWeights:
    """The weights that the tasks of a service have in answers for the name of the service.

    `shares`: the weight of each track. Tracks that it does not contain have the weight 0. `placed`: all placed tasks of
    the service.

    The weights are whole numbers. Their proportions are exact, unless one of them would be greater than 65,535. Then
    all are made smaller, and a weight above 0 stays at least 1.
    """

    def __init__(self, shares: Mapping[str, int], placed: Iterable[WeighedTasks]) -> None:
        groups = [one for one in placed if one.number]
        sums: dict[str, int] = defaultdict(int)
        for track, weight, number in groups:
            sums[track] += weight * number
        pairs = {(one.track, one.weight) for one in groups if shares.get(one.track) and one.weight}
        unit = lcm(*(sums[track] for track, _ in pairs)) if pairs else 1
        found = {(track, weight): shares[track] * weight * (unit // sums[track]) for track, weight in pairs}
        greatest = max(found.values(), default=0)
        if greatest > GREATEST:
            divisor = gcd(*found.values())
            found, greatest = {pair: weight // divisor for pair, weight in found.items()}, greatest // divisor
        if greatest > GREATEST:
            found = {pair: max(1, round(weight * GREATEST / greatest)) for pair, weight in found.items()}
        self._found = found

    def of(self, track: str, weight: int) -> int:
        """Return the weight of a task in answers for the service. `weight`: the task's own weight."""
        return self._found.get((track, weight), 0)
