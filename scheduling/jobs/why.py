"""Explanations of the state of a job or task: sentences, and the events that led to the state (§2.6: "why pending?").

A pending task is explained by the reasons that the last scheduling pass found. A running task is explained by its
placement and the score of its machine. A dead task is explained by how it ended, and why.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.db.models import Count
from django.utils import timezone

from quota.vocabulary.permissions import Action, Principal, may
from quota.vocabulary.resources import DISK, describe, format_number
from scheduling.config_files import missing_files
from scheduling.core.explaining import wording
from scheduling.core.explaining.health_wording import exit_words, format_crash, format_troubles
from scheduling.core.explaining.wording import ENGLISH, Words
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.core.vocabulary.reasons import Why
from scheduling.core.vocabulary.states import JobState, MachineStatus, TaskState
from scheduling.jobs.dependencies.explanations import dependency_sentence, open_dependencies
from scheduling.jobs.fit_guidance import shapes_document
from scheduling.jobs.health import crashing_tasks, health_of
from scheduling.models import Event, Job, Task, Update
from scheduling.secrets import missing_secrets
from scheduling.tasks import pending_verdicts, placement_records
from scheduling.tasks.budget_sentences import rate_sentence
from scheduling.tasks.disruption_rates import rates_of_jobs
from scheduling.tasks.placement_records import PlacementReceipt, Preempted

# Largest number of events in a chain of causes. "dead <- evicted <- drained by an SRE" are three.
LONGEST_CHAIN = 8
# Number of events in which the newest placement and the newest preemption are looked for.
_LATELY = 20
# Crashing tasks up to this number are listed one by one.
_MOST_CRASHES = 5
_TELLING = ("task.placed", "task.evicted", "task.ended", "task.revived")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of the state of a job or task. `chain`: the event that led to the state, and the causes of that
    event.

    `verdicts`: for each class of equal pending tasks, a document with the reasons why they are pending. `health`: the
    health of the job; None if a task is explained. `crashes`: the tasks that crash repeatedly.
    """

    state: str
    sentences: list[str]
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    verdict_revision: int | None = None
    placement: PlacementReceipt | None = None
    preempted: Preempted | None = None
    chain: list[Event] = field(default_factory=list)
    health: JobHealth | None = None
    crashes: list[Task] = field(default_factory=list)


def job_sentences(job: Job) -> list[str]:
    """Return short sentences about the state of a job. Sentences about tasks that crash, are unhealthy or have failed
    come first.
    """
    pending = [f"{_format_verdict(why, job).head} {wording.format_set_time(why)}".rstrip() for why in _whys(job)]
    return _sentences(job, [], pending)


def explain_job(job: Job, principal: Principal) -> Explanation:
    """Explain the state of a job. Sentences about crashing tasks come first. Makes at most ten queries."""
    health = health_of(job)
    crashes = crashing_tasks(job) if health.troubles.crashing else []
    whys = _whys(job)
    names = _nearest_hosts(whys)
    message = _sentences(job, crash_sentences(crashes), _why_sentences(whys, job, principal, names))
    ends = (
        Task.objects.filter(job=job, state=TaskState.DEAD.value)
        .order_by()
        .values_list("outcome", "detail")
        .annotate(number=Count("id"))
        .order_by("-number")[:5]
    )
    message += [f"{number} tasks {outcome}{f': {detail}' if detail else ''}." for outcome, detail, number in ends]
    message += rate_sentences(job)
    kinds = ("job.ended", "update.ended", "job.submitted")
    last = Event.objects.filter(cell_id=job.cell_id, job_id=job.id, kind__in=kinds)
    chain = list(last.order_by("-revision", "-seq")[:1])
    documents = [document(why, job, principal, names) for why in whys]
    return Explanation(
        job.state, message, documents, _revision(job, whys), chain=chain, health=health.state, crashes=crashes
    )


def _sentences(job: Job, crashes: list[str], pending: list[str]) -> list[str]:
    """Return the sentences about a job. They include `crashes`, the sentences about crashing tasks, and `pending`, the
    sentences about pending tasks.
    """
    if job.state == JobState.DEAD:
        return [f"Job {job.name} has ended: {job.outcome}."]
    if job.tasks_pending:
        pending = pending or [f"{job.tasks_pending} tasks wait for the next pass of the scheduler."]
        pending = ([] if is_held(job) else pending) + held_sentences(job)
    living = job.tasks_total - job.tasks_dead
    detail = format_troubles(health_of(job).troubles, living=living) + crashes
    detail.append(f"{job.tasks_up} of {living} tasks are up.")
    if job.open_updates:  # type: ignore[attr-defined]
        update = job.open_updates[0]  # type: ignore[attr-defined]
        detail.append(_update_sentence(update))
    detail += pending
    if starting := job.tasks_running - job.tasks_up:
        detail.append(f"{starting} tasks have a machine and are not up yet.")
    return detail


def rate_sentences(job: Job, words: Words = ENGLISH) -> list[str]:
    """Return how many disruptions of the job are left now. The list is empty, and no query is made, for a job without
    such a limit, and for an ended job. `words`: translates the texts.
    """
    if not job.max_disruptions or job.state == JobState.DEAD:
        return []
    return [rate_sentence(rate, words) for rate in rates_of_jobs([job.id]).values()]


def is_held(job: Job) -> bool:
    """Return whether no task of the job is placed now, because the job waits for a time or for other jobs, or because
    as many tasks as its `max_running` have a machine.
    """
    full = 0 < job.max_running <= job.tasks_running
    return waits_until(job) is not None or job.waits_for_jobs or full


def held_sentences(job: Job, words: Words = ENGLISH) -> list[str]:
    """Return why the job itself holds tasks back: a time, other jobs, or its `max_running`. The list is empty if it
    holds no task back. `words`: translates the texts. Makes a query only for a job that waits for other jobs.
    """
    result = [waiting_sentence(job, words)] if waits_until(job) is not None else []
    if job.waits_for_jobs:
        result.append(dependency_sentence(open_dependencies(job), words))
    if not result and 0 < job.max_running < job.tasks_running + job.tasks_pending:
        result.append(bound_sentence(job.max_running, words))
    return result


def bound_sentence(max_running: int, words: Words = ENGLISH) -> str:
    """Return the sentence about a job that runs only this many tasks at once."""
    text = words.ngettext(
        "At most %(most)d task of the job runs at once (max_running). The others wait until it ends.",
        "At most %(most)d tasks of the job run at once (max_running). The others wait until one of these ends.",
        max_running,
    )
    return text % {"most": max_running}


def waits_until(job: Job) -> dt.datetime | None:
    """Return the time before which no task of the job is placed. Return None if there is none, or if it has passed."""
    return job.start_after if job.start_after is not None and job.start_after > timezone.now() else None


def waiting_sentence(job: Job, words: Words = ENGLISH) -> str:
    """Return the sentence about a job that has a time for its start. `words`: translates the text."""
    text = words.gettext("The tasks wait until %(time)s, because the job has this time as its start_after.")
    return text % {"time": f"{timezone.localtime(job.start_after):%Y-%m-%d %H:%M:%S %Z}"}


def _update_sentence(update: Update) -> str:
    what = f"An update from version {update.from_version} to {update.to_version}"
    if update.restarts:
        what = f"A restart of {update.tasks_to_replace} tasks"
    if update.paused_at is not None:
        undoes = update.from_version > 0 and not update.restarts
        undo = ", and `borgctl undo` returns to the version before" if undoes else ""
        if update.canary and update.by_hand:
            return f"{what} waits for a person: `borgctl resume` promotes its canary tasks when they are up{undo}."
        return f"{what} is paused; `borgctl resume` continues it{undo}."
    if update.canary:
        return f"{what} is in progress. It tries the new version on {update.canary} canary tasks first."
    return f"{what} is in progress, with at most {update.max_down} tasks down."


def explain_task(job: Job, task: Task, principal: Principal) -> Explanation:
    """Explain the state of a task. Makes at most twelve queries, plus one per event in the chain of causes."""
    about = Event.objects.filter(cell_id=job.cell_id, job_id=job.id, task_index=task.index, kind__in=_TELLING)
    lately = list(about.order_by("-revision", "-seq")[:_LATELY])
    chain = _chain(lately[0]) if lately else []
    found = placement_records.receipts(lately, sees=_sees(principal, job))
    whys: list[Why] = []
    names: dict[int, str] = {}
    placement: PlacementReceipt | None = None
    name = f"Task {task.index} of job {job.name}"
    if task.state == TaskState.PENDING:
        whys = _whys(job)
        names = _nearest_hosts(whys)
        detail = _why_sentences(whys, job, principal, names)
        detail = detail or [f"{name} waits for the next pass of the scheduler."]
        detail = ([] if is_held(job) else detail) + held_sentences(job)
    elif task.state == TaskState.RUNNING:
        placement = found.placement if lately and lately[0].kind == "task.placed" else None
        detail = [_running(name, task), *missing_secrets.sentences(job, task), *missing_files.sentences(job, task)]
        detail += placement_sentences(placement) if placement is not None else []
    else:
        detail = [f"{name} is dead: {task.outcome}{f', {task.detail}' if task.detail else ''}."]
    # A task that is dead, or up without a restart, does not keep crashing. This saves a query.
    settled = task.state == TaskState.DEAD or (task.up and not task.restarts)
    crashes = [] if settled else crashing_tasks(job, index=task.index)
    detail = crash_sentences(crashes) + detail
    if found.preempted is not None:
        detail.append(preempted_sentence(found.preempted))
    if ended := _exit_sentence(task):
        detail.append(ended)
    detail += [_step_sentence(event) for event in chain[1:]]
    documents = [document(why, job, principal, names) for why in whys]
    return Explanation(
        task.state, detail, documents, _revision(job, whys), placement, found.preempted, chain, crashes=crashes
    )


def document(why: Why, job: Job, principal: Principal, hostnames: Mapping[int, str]) -> dict[str, Any]:
    """Return a document for the REST API that explains why some tasks of a job are pending. It contains the number of
    these tasks.

    It does not contain names of tenants that the caller may not see. `hostnames`: the names of machines, by machine
    id.
    """
    extra = tuple(job.cell.extra_resources)
    seen = redacted(why, _sees(principal, job))
    result: dict[str, Any] = msgspec.to_builtins(seen)
    del result["places"]
    result["tasks"] = sum(number for job_id, number in why.tasks if job_id == job.id)
    if result["nearest"] is not None:
        result["nearest"]["machine"] = hostnames.get(result["nearest"].pop("machine_id"))
    if seen.shapes is not None:
        result["shapes"] = shapes_document(seen.shapes, extra=extra)
    result["told"] = msgspec.to_builtins(_format_verdict(seen, job, hostnames))
    return result


def redacted(why: Why, sees: Callable[[str], bool]) -> Why:
    """Return the explanation `why` without the names of tenants that the reader may not see. The numbers of their
    tasks are still included. `sees`: returns whether the reader may see the tenant with a given name.
    """
    ahead_of = tuple(one if sees(one.tenant) else msgspec.structs.replace(one, tenant="") for one in why.ahead_of)
    return msgspec.structs.replace(why, ahead_of=ahead_of)


def placement_sentences(placement: PlacementReceipt) -> list[str]:
    """Explain a placement: its score, its packages, the next best machines, and the preempted tasks."""
    detail = []
    if placement.score:
        parts = ", ".join(f"{part} {format_number(value, 3)}" for part, value in sorted(placement.score.items()))
        detail.append(f"It was placed there at revision {placement.revision} by its score: {parts}.")
    if placement.packages_bytes:
        present = describe(DISK, placement.present_bytes) if placement.present_bytes else "none"
        named = describe(DISK, placement.packages_bytes)
        detail.append(f"The machine already had {present} of the {named} of its packages.")
    if placement.runners_up:
        others = ", ".join(f"{machine} {format_number(score, 3)}" for machine, score in placement.runners_up)
        detail.append(f"Its total score is {format_number(placement.total, 3)}. The next best machines: {others}.")
    if placement.victims:
        number = len(placement.victims)
        whom = ", ".join(str(party) for party in placement.victims[:5])
        more = f", and {number - 5} more" if number > 5 else ""
        detail.append(f"It preempted {number} task{'' if number == 1 else 's'} there: {whom}{more}.")
    return detail


def preempted_sentence(preempted: Preempted) -> str:
    """Return when, where and by which task a task was preempted."""
    when = f"{preempted.time:%Y-%m-%d %H:%M:%S} UTC, revision {preempted.revision}"
    by = f" by {preempted.by}" if preempted.by is not None else ""
    return f"It was preempted on {preempted.machine}{by} ({when})."


def crash_sentences(tasks: Sequence[Task], words: Words = ENGLISH) -> list[str]:
    """Return one sentence per crashing task, for the first few of `tasks`. `words`: translates the texts."""
    detail = [
        format_crash(
            task.index,
            machine=task.machine.hostname if task.machine is not None else "",
            restarts=task.restarts,
            exit_text=exit_words(task.exit, words),
            words=words,
        )
        for task in tasks[:_MOST_CRASHES]
    ]
    return detail + ([words.gettext("More tasks of this job crash as well.")] if len(tasks) > _MOST_CRASHES else [])


def _why_sentences(whys: list[Why], job: Job, principal: Principal, names: Mapping[int, str]) -> list[str]:
    detail = []
    for why in whys:
        words = _format_verdict(redacted(why, _sees(principal, job)), job, names)
        detail += [words.head, *words.notes]
    return detail


def _format_verdict(why: Why, job: Job, hostnames: Mapping[int, str] | None = None) -> wording.VerdictText:
    """Return the explanation `why` as text. The text describes only the pending tasks of `job`."""
    own = any(job_id == job.id for job_id, _ in why.tasks)
    extra = tuple(job.cell.extra_resources)
    return wording.format_why(why, job_id=job.id if own else None, extra=extra, hostnames=hostnames)


def _sees(principal: Principal, job: Job) -> Callable[[str], bool]:
    return lambda tenant: may(principal, Action.JOB_VIEW, tenant=tenant, cell=job.cell.name)


def _nearest_hosts(whys: list[Why]) -> dict[int, str]:
    return placement_records.hostnames(why.nearest.machine_id for why in whys if why.nearest is not None)


def _whys(job: Job) -> list[Why]:
    """Return the stored explanations why tasks of the job are pending."""
    held = not job.tasks_pending or is_held(job)
    verdict = None if held else getattr(job, "verdict", None)
    return [] if verdict is None else pending_verdicts.read(verdict.whys)


def _revision(job: Job, whys: list[Why]) -> int | None:
    return job.verdict.revision if whys else None


def _running(name: str, task: Task) -> str:
    host = task.machine.hostname if task.machine else "?"
    there = f"{name} has machine {host}"
    if task.alloc is not None:
        there += f", inside {task.alloc.job.name}/{task.alloc.index},"
    if task.machine is not None and task.machine.state == MachineStatus.DOWN:
        why = f": {task.machine.reason}" if task.machine.reason else ""
        return (
            f"{there}, which is down{why}. Whether the task still runs there is unknown. The task is placed elsewhere"
            " as soon as the cell's brake `lost` allows it."
        )
    if task.up:
        return f"{there} and is up."
    return f"{there} and is {task.phase}, health {task.health or 'unknown'}."


def _exit_sentence(task: Task) -> str:
    if not task.exit:
        return ""
    ended = task.exit
    detail = f", {ended['detail']}" if ended.get("detail") else ""
    cause = ended.get("cause", "unknown")
    if ended.get("signal"):
        return f"Its processes last ended with signal {ended['signal']} ({cause}{detail})."
    if ended.get("status") is None:  # the processes never ran, or their end was not observed
        return f"Its last end: {cause}{detail}."
    return f"Its processes last ended with status {ended['status']} ({cause}{detail})."


def _step_sentence(event: Event) -> str:
    what = next((str(event.data[key]) for key in ("detail", "reason", "cause", "state") if event.data.get(key)), "")
    return f"Because of {event.kind} at revision {event.revision} by {event.actor}{f': {what}' if what else ''}."


def _chain(event: Event) -> list[Event]:
    chain = [event]
    while chain[-1].caused_by_revision is not None and len(chain) < LONGEST_CHAIN:
        cause = Event.objects.filter(  # type: ignore[misc]
            cell_id=event.cell_id, revision=chain[-1].caused_by_revision, seq=chain[-1].caused_by_seq
        ).first()
        if cause is None:
            break
        chain.append(cause)
    return chain
