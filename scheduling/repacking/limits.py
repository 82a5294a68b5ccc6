"""What a re-packing of a cell may move: its rules, read from the rows of jobs and machines."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q

from scheduling.core.repacking.repack_plan import RepackRules
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.journal.sql import query
from scheduling.models import Machine, Repacking
from scheduling.models.machines import REMOVED
from scheduling.tasks.disruption_budgets import DisruptionBudget, budgets_of_cell


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What limits the moves of a job. `tasks`: how many tasks it has. `kept`: why its tasks must stay; empty if they
    may move.
    """

    name: str
    tasks: int
    budget: DisruptionBudget
    kept: str


def limits_of_jobs(cell_id: int, *, patience_s: float) -> dict[int, JobLimits]:
    """Return the limits of all live jobs of a cell, by job id. Makes three queries."""
    budgets = budgets_of_cell(cell_id, patience_s)
    rows = query(
        "SELECT j.id, t.name || '/' || j.name, j.tasks_total,"
        " EXISTS (SELECT FROM scheduling_update AS u WHERE u.job_id = j.id AND u.state = 'open'),"
        " coalesce((s.spec->>'saves_for_s')::float8, 0) > 0"
        " FROM scheduling_job AS j JOIN quota_tenant AS t ON t.id = j.tenant_id"
        " JOIN scheduling_jobspec AS s ON s.job_id = j.id AND s.version = j.spec_version"
        " WHERE j.cell_id = %s AND j.state <> 'dead'",
        [cell_id],
    )
    return {
        job: JobLimits(
            name,
            tasks,
            budgets.get(job, DisruptionBudget(1, 0)),
            "the job is being updated" if updated else "the job keeps its files on the machine" if saves else "",
        )
        for job, name, tasks, updated, saves in rows
    }


def rules_for_plan(repacking: Repacking, jobs: dict[int, JobLimits], *, booked: frozenset[int]) -> RepackRules:
    """Return the rules of a new plan. A job may lose `job_share` of its tasks, but at least as many as may be down at
    once, and at most as many as its rate of disruptions allows now. Of a job whose disruption budget is used up no task
    moves. `booked`: the machines on which capacity is booked
    for a gang. Makes one query.
    """
    moves = {job: _most_moves(repacking, limits) for job, limits in jobs.items() if not limits.budget.used_up}
    return _rules(repacking, jobs, moves, booked)


def _most_moves(repacking: Repacking, limits: JobLimits) -> int:
    most = max(limits.budget.may, int(repacking.job_share * limits.tasks))
    rate = limits.budget.rate
    return most if rate is None else min(most, rate.left)


def rules_for_step(repacking: Repacking, jobs: dict[int, JobLimits], *, booked: frozenset[int]) -> RepackRules:
    """Return the rules by which a step is checked before it begins. Disruption budgets are left out: the drain waits
    for them. `booked`: as in `rules_for_plan`. Makes one query.
    """
    return _rules(repacking, jobs, dict.fromkeys(jobs, MAX_TASKS), booked)


def _rules(
    repacking: Repacking, jobs: dict[int, JobLimits], moves: dict[int, int], booked: frozenset[int]
) -> RepackRules:
    # The files of ended allocs and unknown tasks stay on a machine that is drained.
    occupied = Machine.objects.filter(~Q(kept=[]) | ~Q(quarantined=[]), cell_id=repacking.cell_id).exclude(
        state=REMOVED
    )
    return RepackRules(
        most_moves=repacking.most_moves,
        most_priority=repacking.most_priority,
        job_moves=moves,
        kept_jobs=frozenset(job for job, limits in jobs.items() if limits.kept),
        kept_machines=booked.union(occupied.order_by().values_list("id", flat=True)),
        closed_machines=booked,
    )
