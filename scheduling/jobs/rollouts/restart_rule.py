"""Decides whether a changed spec restarts a running task (§2.3). Pure.

two versions of a spec ─► change ─► NONE, IN_PLACE (the task keeps running) or RESTART, per task
"""

from __future__ import annotations

from enum import StrEnum

from quota.vocabulary.resources import ACCELERATORS
from scheduling.spec.job_spec import JobSpecification, compared, joined
from scheduling.spec.task_spec import TaskSpec

# Fields that cannot change while a task runs. Other fields change in place.
_STATIC = (
    *("command", "flags", "env", "secrets", "ports", "user", "working_dir", "max_processes", "constraints", "root"),
    *("network", "locks", "configs"),
)
# Fields of a job that take effect at once, without an effect on running tasks.
_IMMEDIATE = (
    "priority",
    "labels",
    "reclamation",
    "gang",
    "disruption_budget",
    "max_running",
    "preemption_delay_s",
    "saves_for_s",
    "api",
    "names",
    "deadline_s",
    "start_after",
    "after",
    "ttl_after_end_s",
    "autoscale",
)


class SpecChange(StrEnum):
    """The effect of a changed spec on a running task: nothing, a change while the task runs, or a restart."""

    NONE = "none"
    IN_PLACE = "in-place"
    RESTART = "restart"


def change(old: JobSpecification, new: JobSpecification, index: int) -> SpecChange:
    """Return the effect of `new` on the running task `index` of `old`: nothing, a change while the task runs, or a
    restart. Raises `IndexError` if one of the specs has no such task.
    """
    return _change(old, new, old.task(index), new.task(index))


def changes(old: JobSpecification, new: JobSpecification) -> list[tuple[int, int, SpecChange]]:
    """Return `(first, last, change)` for ranges of task indexes, in order. The ranges cover the tasks that both specs
    have.
    """
    both = ((first, last, before, after) for first, last, before, after in compared(old, new) if before is not None)
    return joined((first, last, _change(old, new, before, after)) for first, last, before, after in both)


def _change(old: JobSpecification, new: JobSpecification, before: TaskSpec, after: TaskSpec) -> SpecChange:
    if (old.latency_sensitive, old.spread) != (new.latency_sensitive, new.spread):
        return SpecChange.RESTART
    kind = _task_change(before, after)
    if kind is SpecChange.NONE and any(getattr(old, name) != getattr(new, name) for name in _IMMEDIATE):
        return SpecChange.IN_PLACE
    return kind


def _task_change(old: TaskSpec, new: TaskSpec) -> SpecChange:
    """Return the effect of a new task spec on a running task. The fields of its job are not compared.

    These fields change while the task runs: limits, slack (use beyond the limit), cores, weight, health check, notice
    period, time limit and restart rules. A change of the accelerators restarts the task.
    """
    if old is new or old == new:
        return SpecChange.NONE
    if any(getattr(old, name) != getattr(new, name) for name in _STATIC):
        return SpecChange.RESTART
    if _contents(old.packages) != _contents(new.packages):
        return SpecChange.RESTART
    if old.limit[ACCELERATORS] != new.limit[ACCELERATORS] or len(old.limit) != len(new.limit):
        return SpecChange.RESTART
    return SpecChange.IN_PLACE


def _contents(packages: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return (name, digest) of each package, or (name, tag) if it has no digest. So two references with different tags
    and the same digest count as equal.
    """
    split = [text.split("@") for text in packages]
    return [(parts[0], parts[-1] if parts[-1].startswith("sha256:") else "@".join(parts[1:])) for parts in split]
