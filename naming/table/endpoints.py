"""The endpoints of tasks for `/bns/`, feeds and watchers, and the choice of the tasks that clients should use. Pure.

Clients should use serving tasks in proportion to their weights. If all weights are 0, they use all serving tasks. If no
task serves, they use all tasks that have an address (fail open). DNS answers follow the same rule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

# (first index, last index, weight) of ranges whose weight is not 1: `scheduling.core.vocabulary.published`
Weights = Sequence[tuple[int, int, int]]


class TaskEndpoint(msgspec.Struct, frozen=True, gc=False):
    """The endpoint of one task. `machine` and `address` are empty while the task is not placed.

    `ports`: port numbers by port name, in the order of the job file. `load`: CPU used now as a share of the limit, or
    None if unknown. `ttl_s`: seconds for which clients may cache the address. `revision`, `history`: position in the
    cell's journal, and the number of the journal's history (a restore of the cell from a backup starts a new history).
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
    """The common fields of the endpoints of jobs and services. `endpoints`: the placed tasks.

    `fail_open`: whether no placed task serves, so that clients get all placed tasks. `revision`, `history`: position in
    the cell's journal at the time of the read. `history` rises when a cell is restored from a backup.
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
    """The answer for the name of a job: its placed tasks and their common fields."""

    labels: Mapping[str, str]


class ServiceEndpoints(_Summary, frozen=True, gc=False, kw_only=True):
    """The endpoints of all live jobs of a service. `jobs`: the paths of the jobs, `/bns/…`."""

    jobs: Sequence[str]


class MachineEndpoint(msgspec.Struct, frozen=True, gc=False):
    """The answer for the name of a machine: its address and state."""

    name: str
    dns: str
    machine: str
    address: str
    state: str
    ttl_s: int
    revision: int
    history: int


def fails_open(endpoints: Iterable[TaskEndpoint]) -> bool:
    """Return whether there are tasks with an address but none of these tasks serves. Clients then use all tasks with an
    address.
    """
    placed = [one.serving for one in endpoints if one.address]
    return bool(placed) and not any(placed)


def shares(endpoints: Sequence[TaskEndpoint]) -> list[tuple[TaskEndpoint, int]]:
    """Return the tasks that clients should use, each with a weight of at least 1."""
    placed = [one for one in endpoints if one.address]
    able = [one for one in placed if one.serving] or placed
    weighed = [(one, one.weight) for one in able if one.weight]
    return weighed or [(one, 1) for one in able]


def weight_of(index: int, weights: Weights) -> int:
    """Return the weight of the task with this index. `weights`: the weights that the job file sets."""
    at = bisect_right(weights, index, key=lambda one: one[0]) - 1
    return weights[at][2] if at >= 0 and index <= weights[at][1] else 1
