"""Makes the plan of a re-packing from the state of the cell that the master has in memory, and stores it."""

from __future__ import annotations

import math
import time

import structlog
from django.db import InterfaceError, OperationalError
from django.db.models import F

from quota.vocabulary.permissions import system
from scheduling.core.cell.state import CellState
from scheduling.core.repacking.fitting_job import plan_for_job
from scheduling.core.repacking.free_machines import plan_free_machines
from scheduling.core.repacking.repack_plan import RepackPlan, disrupted
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.policy import Policy
from scheduling.journal import journal
from scheduling.models import Repacking, RepackingStep
from scheduling.repacking.limits import JobLimits, limits_of_jobs, rules_for_plan

log = structlog.get_logger(__name__)

# A plan names spare machines, this share of the machines that should become free, but at least one.
SPARES = 0.03
# The master places no tasks while it plans, so the search for machines ends after this time.
PLAN_WITHIN_S = 5.0
MOST_TRIES = 2
_OBSTACLES = {
    "kept-task": "on {} a task must not move",
    "limit": "for {} the moves would exceed the limits of the re-packing or of a job",
    "no-place": "for {} a task fits on no other machine",
    "queue": "on {} tasks before it in the queue would take the capacity",
    "time": "the search ended because of its time limit",
}


def plan_make(
    repacking: Repacking, state: CellState, policy: Policy, *, patience_s: float, booked: frozenset[int]
) -> None:
    """Make the plan that was requested, and store it with its steps. `patience_s`: a task that has been down for longer
    does not count as down. `booked`: the ids of machines on which capacity is booked for a gang. Locks the cell's row.
    """
    began = time.perf_counter()
    jobs: dict[int, JobLimits] = {}
    problem = ""
    plan = RepackPlan()
    # A plan during which masters end must not stop the cell again and again.
    if not Repacking.objects.filter(pk=repacking.pk, tries__lt=MOST_TRIES).update(tries=F("tries") + 1):
        problem = f"{MOST_TRIES} attempts to make the plan ended without a result; see the log of the master"
    try:
        if problem:
            raise LookupError(problem)
        jobs = limits_of_jobs(repacking.cell_id, patience_s=patience_s)
        rules = rules_for_plan(repacking, jobs, booked=booked)
        now = time.time()
        if repacking.goal == Repacking.JOB:
            plan = plan_for_job(state, policy, rules, job_id=repacking.job_id or 0, now=now)
        else:
            spares = max(1, math.ceil(SPARES * repacking.number))
            plan = plan_free_machines(
                state,
                policy,
                rules,
                number=repacking.number,
                now=now,
                spares=spares,
                has_time=lambda: time.perf_counter() - began < PLAN_WITHIN_S,
            )
    except (OperationalError, InterfaceError):
        raise  # the database is away
    except LookupError as error:
        problem = str(error)
    except Exception:  # a plan that cannot be made must not stop the master
        log.exception("the plan of a re-packing was not made", repacking=repacking.pk)
        problem = "the plan could not be made because of an unexpected error, which the log of the master contains"
    seconds = time.perf_counter() - began
    with journal.write(repacking.cell_id, system("repacking")) as entry:
        row = Repacking.objects.select_for_update().filter(pk=repacking.pk, state=Repacking.PLANNING).first()
        if row is None:
            return  # another request has replaced it, or another master has planned it
        row.state = Repacking.FAILED if problem else Repacking.PLANNED
        row.detail = problem or _format_plan(row, plan)
        row.planned_at, row.planning_s = entry.time, round(seconds, 3)
        row.ended_at = entry.time if problem else None
        row.moves, row.already_free, row.reached = plan.moves, plan.already_free, plan.reached
        row.obstacles, row.jobs = dict(plan.obstacles), _jobs(plan, jobs)
        row.save()
        RepackingStep.objects.bulk_create(
            [
                RepackingStep(
                    repacking=row,
                    position=position,
                    state=RepackingStep.WAITING if position < len(plan.steps) else RepackingStep.SPARE,
                    machine_id=step.machine_id,
                    tasks=[move.task_id for move in step.moves],
                    moves=sum(step.disrupted.values()),
                )
                for position, step in enumerate(plan.steps + plan.spares)
            ],
            batch_size=1_000,
        )
        entry.append(events.RepackingSet(repacking=row.pk, state=row.state, tasks=row.moves, detail=row.detail))
    log.info(
        "the master has finished the planning of a re-packing; no task has moved yet",
        repacking=row.pk,
        seconds=row.planning_s,
        machines=len(plan.steps),
        moves=row.moves,
    )


def _jobs(plan: RepackPlan, jobs: dict[int, JobLimits]) -> list[dict[str, object]]:
    """Return the jobs that lose tasks, those with the most moves first."""
    moved, spare = disrupted(plan.steps), disrupted(plan.spares)
    return [
        {
            "job": job,
            "name": limits.name,
            "moves": moved[job],
            "spare": spare[job],
            "tasks": limits.tasks,
            "may": limits.budget.may,
            "down": limits.budget.down,
        }
        for job in sorted(moved + spare, key=lambda one: (-moved[one], -spare[one], one))
        if (limits := jobs.get(job)) is not None
    ]


def _format_plan(row: Repacking, plan: RepackPlan) -> str:
    if plan.reached and row.goal == Repacking.JOB:
        return "a pending task of the job fits after the moves" if plan.steps else "a pending task of the job fits now"
    if plan.reached:
        are = "1 machine is" if len(plan.steps) == 1 else f"{len(plan.steps)} machines are"
        return f"{are} free after the moves, {plan.already_free} of them already now"
    why = "; ".join(
        text.format("1 machine" if number == 1 else f"{number} machines")
        for code, text in _OBSTACLES.items()
        if (number := plan.obstacles.get(code))
    )
    if row.goal == Repacking.JOB:
        return (
            f"no moves make a task of the job fit: {why or 'no machine is large enough, or satisfies its constraints'}"
        )
    return f"only {len(plan.steps)} of {row.number} machines can be freed: {why or 'the cell has no more machines'}"
