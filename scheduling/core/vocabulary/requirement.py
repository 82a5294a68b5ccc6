"""The requirement of a task: what a machine must have to run it. Tasks of one equivalence class have equal requirements
(§3.4).
"""

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


# The attribute that names the pool of a machine. Only the cell sets it.
POOL = "pool"
# The attribute in which the link notes the newest protocol that a machine's Borglet speaks with it.
PROTOCOL = "borglet.protocol"


def task_id(job: int, index: int) -> TaskId:
    return TaskId(job << INDEX_BITS | index)


def split_task_id(task: int) -> tuple[JobId, int]:
    return JobId(task >> INDEX_BITS), task & (MAX_TASKS - 1)


class Relation(StrEnum):
    """The relation between an attribute of a machine and a value that a constraint demands. These are the eight
    relations of Google's 2019 trace.
    """

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    GREATER = ">"
    AT_MOST = "<="
    AT_LEAST = ">="
    PRESENT = "present"
    ABSENT = "absent"


class Constraint(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A condition on a machine attribute. A hard constraint excludes machines. A soft one lowers their score by
    `weight`.

    The relations `<`, `<=`, `>` and `>=` compare numbers if both sides are numbers, and text otherwise. A machine
    without the attribute satisfies only `absent` and `!=`.
    """

    attribute: str
    relation: Relation
    value: str = ""
    hard: bool = True
    weight: float = 1.0


class Requirement(msgspec.Struct, frozen=True, order=True):
    """The requirement of a task. `limit`: the amount of each resource. The resources in
    `quota.vocabulary.resources.AXIS` come first, then those that the cell defines itself.

    `max_per_*`: how many tasks of the same job may share one machine, rack or power domain; 0 means no limit.
    `whole_cores`: the number of cores that a latency-sensitive task reserves for itself (§6.2). `packages`: (digest,
    size in bytes), sorted by digest; the machine installs them before the task starts (§3.2).
    """

    limit: tuple[int, ...]
    constraints: tuple[Constraint, ...] = ()
    max_per_machine: int = 0
    max_per_rack: int = 0
    max_per_power_domain: int = 0
    packages: tuple[tuple[str, int], ...] = ()
    whole_cores: int = 0


class Group(msgspec.Struct, frozen=True):
    """Tasks of one job with equal requirements. `ranges`: the first and the last index of each range of tasks."""

    requirement: Requirement
    ranges: tuple[tuple[int, int], ...]

    def indexes(self) -> list[int]:
        return [index for first, last in self.ranges for index in range(first, last + 1)]

    @property
    def size(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)


def spelled(constraint: Constraint) -> str:
    """Return the constraint as text, as it is written in job files."""
    if constraint.relation in (Relation.PRESENT, Relation.ABSENT):
        return f"{constraint.attribute} {constraint.relation.value}"
    return f"{constraint.attribute} {constraint.relation.value} {constraint.value}"


def padded(vector: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return `vector` with zeros added at the end, so that it has `axis` elements. Raises `ValueError` if `vector` is
    longer.
    """
    if len(vector) > axis:
        raise ValueError(
            f"amounts of {len(vector)} resources were given, but the cell had only {axis} resources when this process"
            " loaded it; load the cell again, for example by a restart of this process"
        )
    return (*vector, *[0] * (axis - len(vector)))
