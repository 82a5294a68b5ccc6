"""Why a job or a task is where it is, as sentences and the events behind them (§2.6: "why pending?").

Pending: the last pass' verdicts. Running: its placement and score. Dead: its end, and what caused that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.db.models import Count

from scheduling import verdicts
from scheduling.core import wording
from scheduling.core.reasons import Why
from scheduling.core.states import JobState, TaskState
from scheduling.models import Event, Job, Task

# "died <- evicted <- drain <- by whom" is three steps; more than this is a story for `events`.
LONGEST_CHAIN = 8
_TELLING = ("task.placed", "task.evicted", "task.ended", "task.revived")


@dataclass(frozen=True, slots=True)
class Explanation:
    """`chain`: the event that explains it, then its causes. `score`: by scorer, of the last placement."""

    state: str
    sentences: list[str]
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    verdict_revision: int | None = None
    score: dict[str, float] | None = None
    chain: list[Event] = field(default_factory=list)


def job_sentences(job: Job) -> list[str]:
    """In short, from the row and its verdict alone: no query."""
    if job.state == JobState.DEAD:
        return [f"Job {job.name} is over: {job.outcome}."]
    living = job.tasks_total - job.tasks_dead
    told = [f"{job.tasks_up} of {living} tasks are up."]
    if job.open_updates:
        update = job.open_updates[0]
        told.append(
            f"An update from version {update.from_version} to {update.to_version} is under way, "
            f"with at most {update.max_down} tasks down."
        )
    if job.tasks_pending:
        whys = _whys(job)
        told += [sentence(why, job) for why in whys]
        if not whys:
            told.append(f"{job.tasks_pending} tasks wait for the next pass of the scheduler.")
    starting = job.tasks_running - job.tasks_up
    if starting:
        told.append(f"{starting} tasks have a machine and are not up yet.")
    return told


def explain_job(job: Job) -> Explanation:
    """Three queries."""
    told = job_sentences(job)
    ends = (
        Task.objects.filter(job=job, state=TaskState.DEAD.value)
        .order_by()
        .values_list("outcome", "detail")
        .annotate(number=Count("id"))
        .order_by("-number")[:5]
    )
    told += [
        f"{number} tasks {outcome}{f': {detail}' if detail else ''}." for outcome, detail, number in ends
    ]
    kinds = ("job.ended", "update.ended", "job.submitted")
    last = Event.objects.filter(cell_id=job.cell_id, job_id=job.id, kind__in=kinds)
    chain = list(last.order_by("-revision", "-seq")[:1])
    whys = _whys(job) if job.tasks_pending else []
    return Explanation(job.state, told, msgspec.to_builtins(whys), _revision(job, whys), None, chain)


def explain_task(job: Job, task: Task) -> Explanation:
    """A bounded number of queries, one a step of the chain."""
    about = Event.objects.filter(cell_id=job.cell_id, job_id=job.id, task_index=task.index, kind__in=_TELLING)
    newest = about.order_by("-revision", "-seq").first()
    chain = _chain(newest) if newest else []
    whys: list[Why] = []
    score = None
    name = f"Task {task.index} of job {job.name}"
    if task.state == TaskState.PENDING:
        whys = _whys(job)
        told = [sentence(why, job) for why in whys] or [f"{name} waits for the next pass of the scheduler."]
    elif task.state == TaskState.RUNNING:
        told, score = _running(name, task, newest)
    else:
        told = [f"{name} is dead: {task.outcome}{f', {task.detail}' if task.detail else ''}."]
    if ended := _exit_told(task):
        told.append(ended)
    told += [_step_told(event) for event in chain[1:]]
    return Explanation(task.state, told, msgspec.to_builtins(whys), _revision(job, whys), score, chain)


def sentence(why: Why, job: Job) -> str:
    """One verdict for people, about this job's tasks of the class."""
    own = tuple((job_id, number) for job_id, number in why.tasks if job_id == job.id)
    narrowed = msgspec.structs.replace(why, tasks=own or why.tasks)
    return wording.sentence(narrowed, extra=tuple(job.cell.extra_resources))


def _whys(job: Job) -> list[Why]:
    verdict = getattr(job, "verdict", None)
    return [] if verdict is None else verdicts.read(verdict.whys)


def _revision(job: Job, whys: list[Why]) -> int | None:
    return job.verdict.revision if whys else None


def _running(name: str, task: Task, placed: Event | None) -> tuple[list[str], dict[str, float] | None]:
    there = f"{name} has machine {task.machine.hostname if task.machine else '?'}"
    told = [
        f"{there} and is up."
        if task.up
        else f"{there} and is {task.phase}, health {task.health or 'unknown'}."
    ]
    if placed is None or placed.kind != "task.placed":
        return told, None
    score: dict[str, float] = placed.data.get("score") or {}
    if score:
        parts = ", ".join(f"{scorer} {value:.3g}" for scorer, value in sorted(score.items()))
        told.append(f"It was placed there at revision {placed.revision} by its score: {parts}.")
    if victims := placed.data.get("victims"):
        told.append(f"It preempted {len(victims)} tasks of lower priority.")
    return told, score


def _exit_told(task: Task) -> str:
    if not task.exit:
        return ""
    ended = task.exit
    how = f"signal {ended['signal']}" if ended.get("signal") else f"status {ended.get('status')}"
    detail = f", {ended['detail']}" if ended.get("detail") else ""
    return f"Its processes last ended with {how} ({ended.get('cause', 'unknown')}{detail})."


def _step_told(event: Event) -> str:
    what = next(
        (str(event.data[key]) for key in ("detail", "reason", "cause", "state") if event.data.get(key)), ""
    )
    return (
        f"Because of {event.kind} at revision {event.revision} by {event.actor}{f': {what}' if what else ''}."
    )


def _chain(event: Event) -> list[Event]:
    chain = [event]
    while chain[-1].caused_by_revision is not None and len(chain) < LONGEST_CHAIN:
        cause = Event.objects.filter(
            cell_id=event.cell_id, revision=chain[-1].caused_by_revision, seq=chain[-1].caused_by_seq
        ).first()
        if cause is None:
            break
        chain.append(cause)
    return chain
