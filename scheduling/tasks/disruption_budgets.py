"""Disruption budgets: how many tasks of a job may be down at the same time, and how many may be evicted within a window
of time (§2.3, §4).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db.models import Count

from scheduling.allocs.alloc_sets import KIND
from scheduling.journal.sql import query
from scheduling.models import Task
from scheduling.tasks.disruption_rates import DisruptionRate, rates_of_cell, rates_of_jobs

_DOWN = (
    "SELECT t.job_id, count(*) AS number FROM scheduling_task AS t"
    " LEFT JOIN scheduling_machine AS m ON m.id = t.machine_id"
)
_IS_DOWN = (
    "t.state <> 'dead' AND ((t.up AND m.state = 'down') OR (NOT t.up"
    " AND t.incarnation > 0 AND t.since > now() - make_interval(secs => %s)))"
)
# As `JobSpecification.may_be_down`. It reads no spec completely, because drains read many budgets each second.
_BUDGETS = (
    "SELECT j.id, j.max_disruptions > 0,"
    " coalesce(nullif(j.disruption_budget, 0), nullif((s.spec->'update'->>'max_down')::int, 0),"
    " greatest(1, (s.spec->>'tasks')::int / 10)), coalesce(d.number, 0)"
    " FROM scheduling_job AS j JOIN scheduling_jobspec AS s ON s.job_id = j.id AND s.version = j.spec_version"
    f" LEFT JOIN ({_DOWN} WHERE {{tasks}} AND {_IS_DOWN} GROUP BY t.job_id) AS d ON d.job_id = j.id WHERE {{jobs}}"
)


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """The disruption budget of one job. `may`: how many tasks may be down at once. `down`: how many are down now.
    `rate`: its disruptions within a window of time; None if the job has no limit for them.
    """

    may: int
    down: int
    rate: DisruptionRate | None = None

    @property
    def used_up(self) -> bool:
        """Return whether no further task may be evicted now."""
        return not self.allows(1)

    def allows(self, number: int) -> bool:
        """Return whether `number` more tasks may be evicted together now. All tasks of an alloc leave together, so they
        may exceed a budget of which nothing has been used.
        """
        down = self.may - self.down >= number or not self.down
        return down and (self.rate is None or self.rate.left >= number or not self.rate.counted)


class Budgets:
    """Counts how many more tasks of each job may be evicted within its disruption budget. A task counts as down if it
    is not up or its machine is down.

    Two kinds of tasks do not count as down: tasks that were never placed, and tasks that have been down for longer than
    `patience_s` seconds, because they may never come up.
    """

    def __init__(self, job_ids: set[int], patience_s: float) -> None:
        """Read the disruption budgets of the jobs, and how many of their tasks are down. Makes one query, and one
        more if a job limits its disruptions within a window of time.
        """
        ids = sorted(job_ids)
        found = query(_BUDGETS.format(tasks="t.job_id = ANY(%s)", jobs="j.id = ANY(%s)"), [ids, patience_s, ids])
        rates = rates_of_jobs([job for job, rated, *_ in found if rated])
        self.of = {job: DisruptionBudget(may, down, rates.get(job)) for job, _, may, down in found}
        self._left = defaultdict(int, {job: budget.may - budget.down for job, budget in self.of.items()})
        self._untouched = {job for job, budget in self.of.items() if not budget.down}
        self._rate_left = {job: rate.left for job, rate in rates.items()}
        self._undisrupted = {job for job, rate in rates.items() if not rate.counted}

    def open(self) -> list[int]:
        """Return the ids of the jobs whose disruption budget allows at least one more eviction."""
        return [job for job, left in self._left.items() if left > 0 and self._rate_left.get(job, 1) > 0]

    def take(self, task: Task, inside: Mapping[int, int]) -> bool:
        """Return whether a task may be evicted now. If so, count its eviction against the budget of its job.

        `inside`: if the task is an alloc, the number of tasks that are up inside it, by job id. The budgets of these
        jobs count too.
        """
        costs = _costs(task, inside)
        if not all(self._allows(job, number) for job, number in costs.items()):
            return False
        self.spend(task, inside)
        return True

    def spend(self, task: Task, inside: Mapping[int, int]) -> None:
        """Count the eviction of a task against the budget of its job, even if nothing of the budget is left. `inside`:
        if the task is an alloc, the number of tasks that are up inside it, by job id.
        """
        for job, number in _costs(task, inside).items():
            self._left[job] -= number
            self._untouched.discard(job)
            if job in self._rate_left:
                self._rate_left[job] -= number
                self._undisrupted.discard(job)

    def _allows(self, job: int, number: int) -> bool:
        """Return whether `number` more tasks of a job may be evicted together."""
        # All tasks of an alloc leave together, so they may exceed a budget of which nothing has been used.
        down = self._left[job] >= number or job in self._untouched
        return down and (self._rate_left.get(job, number) >= number or job in self._undisrupted)


def budgets_of_cell(cell_id: int, patience_s: float) -> dict[int, DisruptionBudget]:
    """Return the disruption budgets of all live jobs of a cell, by job id, as in `Budgets`. Makes two queries, and
    reads no spec completely.
    """
    rates = rates_of_cell(cell_id)
    statement = _BUDGETS.format(tasks="t.cell_id = %s", jobs="j.cell_id = %s AND j.state <> 'dead'")
    rows = query(statement, [cell_id, patience_s, cell_id])
    return {job: DisruptionBudget(may, down, rates.get(job)) for job, _, may, down in rows}


def _costs(task: Task, inside: Mapping[int, int]) -> dict[int, int]:
    costs = dict(inside)
    if task.up:
        costs[task.job_id] = costs.get(task.job_id, 0) + 1
    return costs


def inside_allocs(tasks: Iterable[Task]) -> dict[int, dict[int, int]]:
    """For each alloc among `tasks`, return how many tasks of each job are up inside it: {task id of the alloc: {job
    id: number}}.
    """
    allocs = [task.id for task in tasks if task.job.kind == KIND]
    found: dict[int, dict[int, int]] = defaultdict(dict)
    if allocs:
        rows = Task.objects.filter(alloc__in=allocs, up=True).order_by().values_list("alloc_id", "job_id")
        for alloc, job, number in rows.annotate(number=Count("id")):
            found[alloc][job] = number
    return found
