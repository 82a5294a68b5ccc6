"""The endpoints of tasks, as the API `/bns/`, feeds and watchers show them, and the choice of the tasks that clients
should use. Pure.

Clients should use serving tasks in proportion to their weights. If all weights are 0, they use all serving tasks. If no
task serves, they use all tasks that have an address (fail open). DNS answers follow the same rule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from naming.table.service_weights import ServiceWeights, WeighedTasks

# (first index, last index, weight) of ranges whose weight is not 1: `scheduling.core.vocabulary.published`
Weights = Sequence[tuple[int, int, int]]


_JOB = 4  # the part of `/bns/<cell>/<tenant>/<job>/<index>` that is the job


class TaskEndpoint(msgspec.Struct, frozen=True, gc=False):
    """The endpoint of one task. `machine` and `address` are empty while the task is not placed.

    `ports`: the port numbers by port name, in the order of the job file. `load`: the CPU used now as a share of the
    limit, or None if unknown. `ttl_s`: for how many seconds clients may cache the address. `revision`: the position in
    the cell's journal. `history`: a number that rises each time the cell is restored from a backup.
    """

    name: str
    dns: str
    index: int
    state: str
    phase: str
    health: str
    serving: bool
    weight: int
    load: float | None
    ttl_s: int
    machine: str
    address: str
    ports: Mapping[str, int]
    revision: int
    history: int


class _Summary(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The fields that `JobEndpoints` and `ServiceEndpoints` share. `endpoints`: the endpoints of the placed tasks.

    `fail_open`: whether no placed task serves; clients then get all placed tasks. `revision`: the position in the
    cell's journal when the endpoints were read. `history`: a number that rises each time the cell is restored from a
    backup.
    """

    name: str
    dns: str
    tasks: int
    placed: int
    serving: int
    fail_open: bool
    ttl_s: int
    revision: int
    history: int
    endpoints: Sequence[TaskEndpoint]


class JobEndpoints(_Summary, frozen=True, gc=False, kw_only=True):
    """The answer to a query for the name of a job: the endpoints of its placed tasks."""

    labels: Mapping[str, str]


class ServiceEndpoints(_Summary, frozen=True, gc=False, kw_only=True):
    """The answer to a query for the name of a service: the endpoints of all its live jobs. `jobs`: the paths `/bns/…`
    of the jobs. `weights`: the weights of its tracks; empty: the weights of the tasks decide alone.
    """

    jobs: Sequence[str]
    weights: Mapping[str, int]


class MachineEndpoint(msgspec.Struct, frozen=True, gc=False):
    """The answer to a query for the name of a machine: its address and state."""

    name: str
    dns: str
    machine: str
    address: str
    state: str
    ttl_s: int
    revision: int
    history: int


def fails_open(endpoints: Iterable[TaskEndpoint]) -> bool:
    """Return whether some tasks have an address, but none of these tasks serves. Clients then use all tasks that have
    an address.
    """
    placed = [one.serving for one in endpoints if one.address]
    return bool(placed) and not any(placed)


def shares(endpoints: Sequence[TaskEndpoint]) -> list[tuple[TaskEndpoint, int]]:
    """Return the tasks that clients should use, and the weight of each task (at least 1)."""
    placed = [one for one in endpoints if one.address]
    able = [one for one in placed if one.serving] or placed
    weighed = [(one, one.weight) for one in able if one.weight]
    return weighed or [(one, 1) for one in able]


def weighed_by_track(
    endpoints: Sequence[TaskEndpoint], tracks: Mapping[str, str], weights: Mapping[str, int]
) -> Sequence[TaskEndpoint]:
    """Return the endpoints of a service with the weights that clients of the service use. `tracks`: the track of each
    job, by the name of the job. `weights`: the weights of the tracks; empty: those of the tasks.
    """
    if not weights:
        return endpoints
    found = [(tracks[one.name.split("/")[_JOB]], one) for one in endpoints]
    numbers = Counter((track, one.weight) for track, one in found if one.address)
    of_service = ServiceWeights(weights, (WeighedTasks(track, own, number) for (track, own), number in numbers.items()))
    return [replace(one, weight=of_service.of(track, one.weight)) for track, one in found]


def weight_of(index: int, weights: Weights) -> int:
    """Return the weight of the task with this index. `weights`: the weights in the job file. A task without a weight
    there has weight 1.
    """
    at = bisect_right(weights, index, key=lambda one: one[0]) - 1
    return weights[at][2] if at >= 0 and index <= weights[at][1] else 1
