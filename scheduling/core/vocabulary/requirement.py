"""The requirement of a task: pure values, equal for all tasks of one equivalence class (§3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NewType

import msgspec

JobId = NewType("JobId", int)
MachineId = NewType("MachineId", int)
TaskId = NewType("TaskId", int)

# A task's id is made of its job's and its index, so it is known before the row exists.
INDEX_BITS = 20
MAX_TASKS = 1 << INDEX_BITS


# The attribute in which the link notes the newest protocol that a machine's Borglet speaks with it.
PROTOCOL = "borglet.protocol"


def task_id(job: int, index: int) -> TaskId:
    return TaskId(job << INDEX_BITS | index)


def split_task_id(task: int) -> tuple[JobId, int]:
    return JobId(task >> INDEX_BITS), task & (MAX_TASKS - 1)


class Relation(StrEnum):
    """The eight relations of Google's 2019 trace."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    GREATER = ">"
    AT_MOST = "<="
    AT_LEAST = ">="
    PRESENT = "present"
    ABSENT = "absent"


class Constraint(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A demand on a machine attribute. Hard rules a machine out; soft ones only lower its score by `weight`.

    Ordered relations compare as numbers when both sides are numbers, otherwise as text. A machine without
    the attribute satisfies `absent` and `!=` alone.
    """

    attribute: str
    relation: Relation
    value: str = ""
    hard: bool = True
    weight: float = 1.0


class Requirement(msgspec.Struct, frozen=True, order=True):
    """The requirement of a task. `limit`: int64 vector over `quota.vocabulary.resources.AXIS` (+ the cell's own), its
    `ports` the number of ports.

    `max_per_*`: how many tasks of the same job may share one machine, rack or power domain; 0: no limit.
    `whole_cores`: so many cores are kept free of other latency-sensitive tasks, if it is one itself (§6.2).
    `packages`: (digest, size in bytes) of each, in order of digest: they are installed before it starts (§3.2).
    """

    limit: tuple[int, ...]
    constraints: tuple[Constraint, ...] = ()
    max_per_machine: int = 0
    max_per_rack: int = 0
    max_per_power_domain: int = 0
    packages: tuple[tuple[str, int], ...] = ()
    whole_cores: int = 0


class Group(msgspec.Struct, frozen=True):
    """Tasks of one job with equal requirements: `ranges` are `[first, last]` indexes, bounds included."""

    requirement: Requirement
    ranges: tuple[tuple[int, int], ...]

    def indexes(self) -> list[int]:
        return [index for first, last in self.ranges for index in range(first, last + 1)]

    @property
    def size(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)


def spelled(constraint: Constraint) -> str:
    """Return the resource in the spelling of job files."""
    if constraint.relation in (Relation.PRESENT, Relation.ABSENT):
        return f"{constraint.attribute} {constraint.relation.value}"
    return f"{constraint.attribute} {constraint.relation.value} {constraint.value}"


def padded(vector: Sequence[int], axis: int) -> tuple[int, ...]:
    """A vector as long as the axis. Raises `ValueError` when it is longer: the cell has gained a resource."""
    if len(vector) > axis:
        raise ValueError(f"a vector of {len(vector)} resources in a cell of {axis}: load its state again")
    return (*vector, *[0] * (axis - len(vector)))
