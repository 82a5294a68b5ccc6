"""Google's cell of 2011 at one moment: a sample of one fifth of it, copied until the cell has full size (§5.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Group, Requirement
from scheduling.simulator.behaviour import Drawn, outages
from scheduling.simulator.traces.google2011 import (
    FIFTH_MACHINES,
    FIFTH_TASKS,
    PRIORITIES,
    TENANTS,
    capacity_of,
    limit_of,
    machine_set,
    rows,
)
from scheduling.simulator.workload import Workload

_Row = dict[str, str]


def moment(
    folder: Path, *, clones: int = 5, seed: int = 2011, days: float = 7.0
) -> tuple[list[events.Event], Workload]:
    """Return the machines and the submitted jobs of Google's cell, and a workload for `days` days. All tasks are
    pending at first.

    The trace in `folder` has one fifth of the cell, which is copied `clones` times; five copies give the full cell. The
    workload contains failures of machines, usage of tasks, and run times of tasks that are not prod. All of these are
    drawn at random from `seed`.
    """
    machines = list(rows(folder / FIFTH_MACHINES))
    fleet = [
        machine_set(
            clone * len(machines) + number,
            f"{row['machine']}-{clone}",
            platform=row["platform"],
            capacity=capacity_of(row["cpu"], row["mem"]),
        )
        for clone in range(clones)
        for number, row in enumerate(machines)
    ]
    jobs: dict[str, list[_Row]] = {}
    for row in rows(folder / FIFTH_TASKS):
        jobs.setdefault(row["job"], []).append(row)
    cloned = _jobs(jobs, clones, machines=len(fleet))
    changes = outages(fleet, seed=seed, began=0.0, days=days)
    return [*fleet, *cloned], Workload(Drawn(seed), changes=changes)


def _jobs(jobs: dict[str, list[_Row]], clones: int, *, machines: int) -> Iterator[events.JobSubmitted]:
    number = 0
    for clone in range(clones):
        for name, tasks in jobs.items():
            number += 1
            first = tasks[0]
            # Anti-affinity of jobs that are larger than half the cell is soft (§5.1).
            apart = bool(int(first["different_machines"])) and 2 * len(tasks) <= machines
            ranges: dict[Requirement, list[tuple[int, int]]] = {}
            for index, row in enumerate(tasks):
                limit = limit_of(row["cpu"], row["mem"], row["disk"])
                ranges.setdefault(Requirement(limit, max_per_machine=int(apart)), []).append((index, index))
            tenant = (int(name) + clone) % TENANTS
            yield events.JobSubmitted(
                job_id=number,
                uid=f"{number:032x}",
                tenant_id=tenant + 1,
                tenant=f"t{tenant:02d}",
                name=f"j{name}-{clone}",
                job_kind="job",
                priority=PRIORITIES[int(first["priority"])],
                latency_sensitive=int(first["sched_class"]) >= 2,
                spec_version=1,
                groups=tuple(Group(requirement, _joined(spans)) for requirement, spans in ranges.items()),
            )


def _joined(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges with adjacent ones joined. `spans`: ranges (first, last) in ascending order."""
    joined: list[tuple[int, int]] = []
    for first, last in spans:
        if joined and joined[-1][1] == first - 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)
