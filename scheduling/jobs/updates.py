"""Updates of live jobs (§2.3). A job gets a new version of its spec, and its tasks change to this version step by step.

    job_update ─► version N+1, quota of the difference, Update(open) ─► advance, advance, … ─► done | stopped
                                                                          ▲
                                         the master, after each change ───┘

An `Update` row stores the progress in the database, so another process can continue after a failure. Tasks that are not
up, and tasks that can change in place, change at once. At most `max_down` tasks are down at the same time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import msgspec
from django.conf import settings

from quota.admission import admission
from quota.vocabulary.bands import FREE_PRIORITY, Band, band_of
from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, system
from quota.vocabulary.resources import Vector
from scheduling.access.tenant_permission import require_tenant
from scheduling.allocs import alloc_sets
from scheduling.config_files import known_files, spec_uses
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.jobs import quota_rejections
from scheduling.jobs.actions import autoscaled
from scheduling.jobs.dependencies.changes import check_after, dependencies_keep
from scheduling.jobs.job_times import deadline_of, times_refusal
from scheduling.jobs.rollouts.restart_rule import SpecChange, changes
from scheduling.jobs.rollouts.rollout import advance, is_used_up
from scheduling.jobs.submission.outcomes import rejected_event
from scheduling.jobs.submission.revisions import check_revision, revision_of
from scheduling.journal import journal
from scheduling.journal.row_events import seconds, update_started_event
from scheduling.models import Job, JobSpec, Task, Update
from scheduling.packages import pinning
from scheduling.secrets import known_secrets, spec_rules
from scheduling.spec import job_spec as spec
from scheduling.spec import parser
from scheduling.spec.field_errors import rejection
from scheduling.spec.privileges import privilege_refusal
from scheduling.spec.schema import MANUAL, Rolling

# Codes of rejections that are recorded in the journal.
ADMISSION = ("quota-exceeded", "budget-exhausted")
MAX_VERSION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class JobChange:
    """The result of an update. `outcome`: updated, or unchanged if the spec is equal. `version`: the number of the
    current version.
    """

    job: Job
    outcome: str
    version: int
    update: Update | None = None


def job_update(
    *,
    principal: Principal,
    job: Job,
    job_spec: spec.JobSpecification,
    dry_run: bool = False,
    undo: bool = False,
    reason: str = "",
    later: bool = False,
    quiet: bool = False,
    if_revision: str = "",
    check: Callable[[Job], None] | None = None,
    continues: bool = False,
    rolled_back: str = "",
    source: str = "",
) -> JobChange:
    """Store a new version of a live job's spec, and start an update of its tasks. An equal spec changes nothing.

    `if_revision`: the revision that the job must have (`submission.revisions`). `reason`: text for the journal.
    `undo`: record the update as an undo. `later`: do not change tasks in this call. The master or a call of
    `update_advance_job` changes them later. `quiet`: a rejection is neither explained nor recorded in the journal.

    `check`: a function that is called with the job under the cell's lock, and raises `Rejected` if the job cannot
    change now. `continues`: the new update goes on with the open update of the job. It is paused if that update is
    paused. If that update is a restart, it restarts the tasks that are left and no other task changes. An undo of a
    change of only the priority, such as a demotion, does the same. A change by the autoscaler causes no disruption
    either if the last update was stopped after it had caused as many as it may. `rolled_back`: the open update of the
    job ends as rolled back, for this reason.

    `source`: `FILE` for a job file, whose values the autoscaler may have changed (`actions.autoscaled`), or `VALUES`
    for single values that a user sets, which the autoscaler goes on from.

    Raises `Rejected` if the quota is too small, a field cannot change or the revision is different, and `Conflict` if
    the job has ended. Locks: the cell's row, then the tenant's use of quota. Each step of the update then locks the
    cell's row and the tasks.
    """
    require_tenant(principal, Action.JOB_WRITE, job.tenant.name, job.cell.name)
    try:
        done = _change(
            principal,
            job,
            job_spec,
            dry_run=dry_run,
            undo=undo,
            reason=reason,
            earlier=undo or quiet,
            if_revision=if_revision,
            check=check,
            continues=continues,
            rolled_back=rolled_back,
            source=source,
        )
    except _Rehearsal as rehearsal:
        return rehearsal.change
    except Rejected as problem:
        if quiet:
            raise
        if problem.code in ADMISSION and not dry_run:
            with journal.write(job.cell_id, principal) as entry:
                entry.append(rejected_event(job.tenant.name, job.name, problem))
        if problem.code == "quota-exceeded":
            for_new_spec = quota_requests(job, job_spec)[-1]
            quota_rejections.explain(principal, job.cell, [(problem, for_new_spec)])
        raise
    if done.outcome == "unchanged" and source == autoscaled.FILE and not dry_run:
        autoscaled.own_values_store(done.job, autoscaled.values_of(job_spec))
    if done.update is not None and not later:
        update_advance_job(done.job)
        done.update.refresh_from_db()
    done.job.refresh_from_db()
    return done


def job_undo(*, principal: Principal, job: Job, dry_run: bool = False) -> JobChange:
    """Update a job to the spec that it had before the current one. This spec is stored again as a new version.

    Raises `Conflict` if the job has never been updated. Takes the same locks as `job_update`. If the job gets another
    version meanwhile, such as by the autoscaler, the spec is read again.
    """
    require_tenant(principal, Action.JOB_WRITE, job.tenant.name, job.cell.name)
    for last in (False, False, True):
        revision, before = revision_of(job), spec_before(job)
        try:
            return job_update(
                principal=principal, job=job, job_spec=before, dry_run=dry_run, undo=True, if_revision=revision
            )
        except Rejected as problem:
            if last or problem.code != "revision-changed":
                raise
        job = Job.objects.select_related("cell", "tenant", "alloc_set").get(pk=job.pk)
    raise AssertionError


def spec_of(job: Job, version: int | None = None) -> spec.JobSpecification:
    """Return a version of a job's spec, by default the current one. Raises `JobSpec.DoesNotExist` if there is no such
    version.
    """
    row = JobSpec.objects.get(job=job, version=version or job.spec_version)
    return parser.load(row.spec, extra=tuple(job.cell.extra_resources))


def spec_before(job: Job) -> spec.JobSpecification:
    """Return the spec to which an undo returns: the one before the last update that the autoscaler did not make, with
    the values that it has set since. If it has made all updates, this is the version before the current one. Raises
    `Conflict` if the job has never been updated.
    """
    if job.spec_version < 2:
        raise Conflict("nothing-to-undo", f"cannot undo an update of job {job.name}, because it has never been updated")
    last = _last_by_user(job)
    if last in (0, 1, job.spec_version):
        return spec_of(job, job.spec_version - 1)
    return autoscaled.undone(job, spec_of(job, last - 1), last - 1)


def _last_by_user(job: Job, before: int = MAX_VERSION) -> int:
    """Return the newest version before `before` that the autoscaler did not make; 0 if there is none."""
    by_users = JobSpec.objects.filter(job=job, version__lt=before).exclude(actor=autoscaled.AUTOSCALER.name)
    return by_users.order_by("-version").values_list("version", flat=True).first() or 0


def spec_columns(
    job_spec: spec.JobSpecification, bands: Sequence[Band], *, submitted_at: dt.datetime
) -> dict[str, Any]:
    """Return the columns of a job's row that follow from its spec. `submitted_at`: the time of the job's submission."""
    return {
        "labels": job_spec.labels,
        "priority": job_spec.priority,
        "band": band_of(job_spec.priority, bands).name,
        "latency_sensitive": job_spec.latency_sensitive,
        "port_names": list(job_spec.base.ports),
        "gang": job_spec.gang,
        "disruption_budget": job_spec.budget_down,
        "max_disruptions": job_spec.disruption_limits.max_disruptions,
        "disruption_window_s": job_spec.disruption_limits.window_s,
        "max_running": job_spec.max_running,
        "published": msgspec.to_builtins(job_spec.published()),
        "requested": list(job_spec.charged()),
        "max_run_s": job_spec.max_run_s,
        "ends_within_s": job_spec.ends_within_s(ttl_s=settings.BORG_DNS_TTL),
        "start_after": job_spec.starts_at,
        "ttl_after_end_s": job_spec.ttl_after_end_s,
        "deadline_at": deadline_of(job_spec, submitted_at=submitted_at),
    }


def update_open(
    entry: journal.JournalEntry,
    job: Job,
    *,
    from_version: int,
    to_spec: spec.JobSpecification,
    actor: str,
    undo: bool = False,
    restarts: Sequence[Sequence[int]] = (),
    gated: bool = False,
    rolled_back: str = "",
    continues: Update | None = None,
) -> Update:
    """Start an update of the tasks of `job` to its current version, or a restart of the incarnations `restarts` (as in
    `Update`). If another update of the job is still open, it ends as superseded, or as rolled back for the reason
    `rolled_back`.

    `gated`: whether the settings for canary tasks, rollback and deadline apply. `continues`: the update that the new
    one goes on with. The new update has its `disruptions`, and if it was open, its `from_version`, `restarts`,
    `paused_at` and gates.
    """
    how, detail = (Update.ROLLED_BACK, rolled_back) if rolled_back else (Update.SUPERSEDED, "a newer update")
    updates_close(entry, [job.id], detail, how=how)
    disruptions, paused_at = 0, None
    gates = _gates(to_spec, entry.time) if gated else {}
    if continues is not None:
        disruptions = continues.disruptions
    if continues is not None and continues.state == Update.OPEN:
        from_version, restarts, paused_at = continues.from_version, continues.restarts, continues.paused_at
        gates = {name: getattr(continues, name) for name in _GATES}
    update = Update.objects.create(
        job=job,
        from_version=from_version,
        to_version=job.spec_version,
        max_down=restart_max_down(to_spec) if restarts else to_spec.max_down(),
        max_disruptions=to_spec.update.max_disruptions,
        disruptions=disruptions,
        undo=undo,
        restarts=[list(one) for one in restarts],
        paused_at=paused_at,
        actor=actor,
        created_at=entry.time,
        **gates,
    )
    entry.append(update_started_event(update))
    if paused_at is not None:
        entry.append(events.UpdatePaused(job_id=job.id, update_id=update.id, paused=True))
    return update


_GATES = ("canary", "healthy_s", "by_hand", "rollback", "deadline_at")


def _gates(to_spec: spec.JobSpecification, now: dt.datetime) -> dict[str, Any]:
    """Return the columns of an update that decide when more tasks change, and whether it is rolled back."""
    rules = to_spec.update
    return {
        "canary": min(rules.canary, to_spec.tasks),
        "healthy_s": rules.healthy_s,
        "by_hand": rules.promote == MANUAL,
        "rollback": rules.rollback,
        "deadline_at": None if rules.deadline_s is None else now + dt.timedelta(seconds=rules.deadline_s),
    }


def restart_max_down(job_spec: spec.JobSpecification) -> int:
    """Return how many tasks a restart may have down: as many as an update, but at most the disruption budget."""
    return min(job_spec.max_down(), job_spec.budget_down or MAX_TASKS)


def update_advance_job(job: Job) -> bool:
    """Continue a job's open update as far as possible now. Return whether anything changed."""
    return advance(job.cell_id, job.id, principal=system("updates"))


def updates_advance(cell_id: int, *, most: int = journal.CHUNK) -> bool:
    """Continue all open updates of a cell. Create at most `most` tasks per job. Return whether anything changed."""
    jobs = Update.objects.filter(job__cell_id=cell_id, state=Update.OPEN, paused_at=None).order_by("job_id")
    changed = False
    for job_id in jobs.values_list("job_id", flat=True):
        changed |= advance(cell_id, job_id, principal=system("updates"), most=most)
    return changed


class _Rehearsal(Exception):
    """Raised to roll back a dry run. Contains the result of the dry run."""

    def __init__(self, change: JobChange) -> None:
        super().__init__("dry run")
        self.change = change


def _change(
    principal: Principal,
    job: Job,
    job_spec: spec.JobSpecification,
    *,
    dry_run: bool,
    undo: bool,
    reason: str,
    earlier: bool,
    if_revision: str,
    check: Callable[[Job], None] | None,
    continues: bool,
    rolled_back: str,
    source: str,
) -> JobChange:
    """Store a new version of the spec, and open an update. `earlier`: the job had this spec before, so the time of its
    start may have passed. The other arguments: as in `job_update`.
    """
    job_spec = job_spec.at(cell=job.cell.name, tenant=job.tenant.name)
    with journal.write(job.cell_id, principal) as entry:
        given = job_spec
        if source == autoscaled.FILE:
            job_spec = autoscaled.with_kept_values(job, job_spec)
        pins = pinning.pin_one(job.cell, job.tenant_id, job_spec)
        job_spec, digest = pins.spec, pins.spec.digest()
        job = Job.objects.select_related("cell", "tenant", "alloc_set").get(pk=job.pk)
        if job.state == JobState.DEAD:
            raise Conflict("job-ended", f"job {job.name} has ended and cannot be updated; submit it again")
        check_revision(job, if_revision, job.name)
        if check is not None:
            check(job)
        current = JobSpec.objects.get(job=job, version=job.spec_version)
        if current.digest == digest:
            return JobChange(job, "unchanged", job.spec_version)
        _check_fixed(job, job_spec)
        _check_privileges(principal, job, job_spec, current)
        _check_alloc_set(job, job_spec)
        if not earlier and job_spec.after:
            check_after(current.spec.get("after", {}), job_spec.after, job)
        _check_secrets(job, job_spec, current, earlier=earlier)
        _check_config_files(job, job_spec, current, earlier=earlier and not (undo and not rolled_back))
        columns = spec_columns(job_spec, admission.bands(), submitted_at=job.created_at)
        before = (job_spec.starts_at if earlier else job.start_after, job.deadline_at)
        started = job.start_after is None or job.start_after <= entry.time
        if problem := times_refusal(
            job_spec, submitted_at=job.created_at, now=entry.time, before=before, started=started
        ):
            raise problem
        for problem in admission.admit(cell=job.cell.name, asks=quota_requests(job, job_spec)):
            if problem is not None:
                raise problem
        change = JobChange(job, "updated", job.spec_version + 1)
        if dry_run:
            raise _Rehearsal(change)
        old_version = job.spec_version
        job.spec_version += 1
        if columns["max_running"] != job.max_running:
            columns["may_start_since"] = entry.time
        for name, value in columns.items():
            setattr(job, name, value)
        job.save(update_fields=["spec_version", *columns])
        JobSpec.objects.create(
            job=job,
            version=job.spec_version,
            spec=job_spec.to_json(),
            digest=digest,
            packages=pins.packages,
            secrets=spec_rules.names_of(job_spec),
            configs=spec_uses.names_of(job_spec),
            actor=principal.name,
        )
        dependencies_keep(entry, job, job_spec.after)
        autoscaled.autoscaling_create([(job, job_spec)])
        if source == autoscaled.VALUES:
            values = autoscaled.stored_values(current.spec)
            autoscaled.own_values_store(job, autoscaled.values_of(job_spec), before=values)
        elif source == autoscaled.FILE:
            autoscaled.own_values_store(job, autoscaled.values_of(given))
        entry.append(
            events.JobChanged(
                job_id=job.id,
                priority=job.priority,
                latency_sensitive=job.latency_sensitive,
                spec_version=job.spec_version,
                labels=job.labels,
                port_names=job_spec.base.ports,
                gang=job.gang,
                disruption_budget=job.disruption_budget,
                max_running=job.max_running,
                start_after=seconds(job.start_after),
                max_run_s=job.max_run_s or 0.0,
                ends_within_s=job.ends_within_s or 0.0,
                published=job_spec.published(),
                reason=rolled_back or reason,
            )
        )
        goes_on = continues or (undo and not rolled_back and _changes_only_priority(job, current, job_spec))
        update = update_open(
            entry,
            job,
            from_version=old_version,
            to_spec=job_spec,
            actor=principal.name,
            undo=undo,
            # Tasks that wait for a time or for other jobs disrupt nothing, and would let every deadline pass.
            gated=started
            and not job.waiting
            and not rolled_back
            and (not undo or _was_rolled_back(job))
            and _restarts_tasks(job, job_spec),
            rolled_back=rolled_back,
            continues=_continued(job, principal) if goes_on else None,
        )
    return JobChange(job, "updated", job.spec_version, update)


def _continued(job: Job, principal: Principal) -> Update | None:
    """Return the update that a change goes on with: the open one. The autoscaler also goes on with the last one if it
    was stopped after it had caused as many disruptions as it may.
    """
    last = Update.objects.filter(job=job).order_by("-id").first()
    if last is None or last.state == Update.OPEN:
        return last
    ours = principal.name == autoscaled.AUTOSCALER.name and last.state == Update.STOPPED and is_used_up(last)
    return last if ours else None


def _restarts_tasks(job: Job, job_spec: spec.JobSpecification) -> bool:
    """Return whether the new spec restarts a task of any version that live tasks have. Without settings for such
    updates, this is not computed, and the result is False.
    """
    if job_spec.update == Rolling(max_down=job_spec.update.max_down, max_disruptions=job_spec.update.max_disruptions):
        return False
    live = Task.objects.filter(job=job).exclude(state=TaskState.DEAD.value).order_by()
    rows = JobSpec.objects.filter(job=job, version__in=live.values("spec_version").distinct())
    extra = tuple(job.cell.extra_resources)
    running = (parser.load(stored, extra=extra) for stored in rows.values_list("spec", flat=True))
    return any(kind is SpecChange.RESTART for one in running for _, _, kind in changes(one, job_spec))


def _was_rolled_back(job: Job) -> bool:
    """Return whether the last change by others than the autoscaler was a rollback, so that the current version, an
    undo, brings back what was rolled back.
    """
    last = _last_by_user(job, job.spec_version)
    return Update.objects.filter(job=job, to_version=last - 1, state=Update.ROLLED_BACK).exists()


def _changes_only_priority(job: Job, current: JobSpec, job_spec: spec.JobSpecification) -> bool:
    """Return whether the new spec differs from the current one only in the priority, as after a demotion."""
    before = parser.load(current.spec, extra=tuple(job.cell.extra_resources))
    return msgspec.structs.replace(before, priority=job_spec.priority).digest() == job_spec.digest()


def _check_fixed(job: Job, job_spec: spec.JobSpecification) -> None:
    inside = job.alloc_set.name if job.alloc_set is not None else ""
    for path, old, new in (
        ("name", job.name, job_spec.name),
        ("kind", job.kind, job_spec.kind),
        ("alloc_set", inside, job_spec.alloc_set),
    ):
        if old != new:
            detail = f"the {path} cannot change from {old!r} to {new!r} while the job is live; submit a new job"
            raise invalid(path, detail, "invalid-spec")


def _check_privileges(principal: Principal, job: Job, job_spec: spec.JobSpecification, current: JobSpec) -> None:
    """Check that the caller may use the privileges that the new spec requests. A privilege that the current spec
    already has is allowed.
    """
    if privilege_refusal(principal, job.cell.name, job_spec) is None:
        return
    before = parser.load(current.spec, extra=tuple(job.cell.extra_resources))
    if problem := privilege_refusal(principal, job.cell.name, job_spec, before):
        raise problem


def _check_secrets(job: Job, job_spec: spec.JobSpecification, current: JobSpec, *, earlier: bool) -> None:
    """Check the secrets that a new spec uses, and values in `env` that look like secrets. What the current spec has too
    is accepted. `earlier`: the job had the new spec before, so only erased values are rejected.
    """
    if earlier and (problems := spec_rules.erased_values(job_spec)):
        raise rejection(problems)
    if earlier or not (spec_rules.uses_any(job_spec) or spec_rules.plain_secrets(job_spec)):
        return
    before = parser.load(current.spec, extra=tuple(job.cell.extra_resources))
    if problems := spec_rules.plain_secrets(job_spec, before):
        raise rejection(problems)
    if list(spec_rules.uses_of(job_spec)) == list(spec_rules.uses_of(before)):
        return
    (problem,) = known_secrets.refusals(job.cell.name, [job_spec])
    if problem is not None:
        raise problem


def _check_config_files(job: Job, job_spec: spec.JobSpecification, current: JobSpec, *, earlier: bool) -> None:
    """Check that the config files that a new spec uses exist. What the current spec uses too is accepted. `earlier`:
    the system brings back a spec that the job had before, so nothing is checked.
    """
    if earlier or not spec_uses.uses_any(job_spec):
        return
    before = parser.load(current.spec, extra=tuple(job.cell.extra_resources))
    if list(spec_uses.uses_of(job_spec)) == list(spec_uses.uses_of(before)):
        return
    (problem,) = known_files.refusals([job_spec])
    if problem is not None:
        raise problem


def _check_alloc_set(job: Job, job_spec: spec.JobSpecification) -> None:
    """Check the new spec of a job together with alloc sets (§2.4). If the job is an alloc set, the jobs inside must
    still fit into it. If the job is inside an alloc set, it must still fit into that set.
    """
    alloc_sets.check_change(job, job_spec)
    if job.alloc_set is not None and (problem := alloc_sets.refusal(job_spec, spec_of(job.alloc_set))):
        raise problem


def quota_requests(job: Job, job_spec: spec.JobSpecification) -> list[admission.AdmissionRequest]:
    """Return the requests to admission control that change how much quota the job uses. If the band of the job
    changes, the first request releases the quota in the old band.
    """
    bands = admission.bands()
    tenant = (job.tenant_id, job.tenant.name)
    old, new = tuple(job.requested), job_spec.charged()
    if _account(job.priority, bands) == _account(job_spec.priority, bands):
        return [admission.AdmissionRequest(*tenant, job_spec.priority, _difference(new, old))]
    return [
        admission.AdmissionRequest(*tenant, job.priority, _difference((), old)),
        admission.AdmissionRequest(*tenant, job_spec.priority, new),
    ]


def _account(priority: int, bands: Sequence[Band]) -> str:
    return "" if priority == FREE_PRIORITY else band_of(priority, bands).name


def _difference(new: Vector, old: Vector) -> Vector:
    """Return `new` - `old`. One of the vectors may be shorter; its missing elements count as 0."""
    return tuple(have - had for have, had in zip_longest(new, old, fillvalue=0))


def updates_close(
    entry: journal.JournalEntry, job_ids: Collection[int], detail: str, *, how: str = Update.SUPERSEDED
) -> None:
    """End the open updates of jobs as superseded or rolled back (`how`). A job without an open update is left out.
    `detail`: the reason.
    """
    closed = list(Update.objects.filter(job_id__in=job_ids, state=Update.OPEN).order_by("id"))
    if not closed:
        return
    rows = Update.objects.filter(pk__in=[update.id for update in closed])
    rows.update(state=how, detail=detail, ended_at=entry.time)
    entry.extend(
        events.UpdateEnded(job_id=update.job_id, update_id=update.id, how=how, detail=detail) for update in closed
    )
