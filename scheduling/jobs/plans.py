"""Plans: the effect that a submission or update would have (`borgctl plan`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from django.conf import settings

from quota.admission.admission import AdmissionRequest
from quota.models import Tenant
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal
from quota.vocabulary.resources import format_number
from scheduling.access.tenant_permission import require_tenant
from scheduling.core.vocabulary.published import track_of
from scheduling.jobs import submit_and_kill, updates
from scheduling.jobs.actions.autoscaled import FILE, with_scaled_values
from scheduling.jobs.dependencies.explanations import dependency_sentence
from scheduling.jobs.fit_guidance import Guidance, guidance
from scheduling.jobs.plan_quota import quota_sentences
from scheduling.jobs.rollouts import restart_rule
from scheduling.jobs.rollouts.restart_rule import SpecChange
from scheduling.jobs.submission import revisions
from scheduling.jobs.why import bound_sentence
from scheduling.models import Cell, Job, ServiceWeighting
from scheduling.spec import job_spec as spec
from scheduling.spec import name_changes
from scheduling.spec.merge_patch import format_changes
from scheduling.spec.schema import SERVICE_LABEL
from scheduling.tasks.budget_sentences import budget_sentence


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a job's tasks. `count`: the number of tasks. `ranges`: the indexes of the tasks as (first, last), both
    included.
    """

    count: int = 0
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The effect that submitting a job file would have. `action`: submit, update, or none. `problem`: why the job file
    would be rejected, if it would.

    `tasks`: the tasks that would be added, removed, restarted, changed in place (`in_place`) or kept. `max_down`: the
    largest number of tasks that are down at once. `guidance`: how many tasks fit in the cell; empty if the caller did
    not ask for it. `names`: sentences about what changes for clients that look up the job's DNS names. `quota`:
    sentences about the quota before and after; empty like `guidance`. `notes`: sentences about when the tasks of a new
    job start, and about a new or changed disruption budget. `changes`: a line for each field that an update changes.
    """

    action: str
    name: str
    version: int
    tasks: dict[str, Share] = field(default_factory=dict)
    max_down: int = 0
    problem: Rejected | None = None
    guidance: tuple[Guidance, ...] = ()
    names: tuple[str, ...] = ()
    quota: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    revision: str = revisions.NEW

    def sentence(self) -> str:
        """Return the plan as text."""
        if self.problem is not None:
            return self.problem.detail
        if self.action == "none":
            return f"Nothing changes: job {self.name} already has this spec."
        words = {"added": "start", "removed": "stop", "restarted": "restart", "in_place": "change in place"}
        parts = [f"{self.tasks[key].count} {word}" for key, word in words.items() if key in self.tasks]
        detail = f"Job {self.name}, version {self.version}: changes of its tasks: {', '.join(parts) or 'none'}"
        return f"{detail}, at most {self.max_down} down at once." if "restarted" in self.tasks else f"{detail}."


_NAMES = {SpecChange.NONE: "kept", SpecChange.IN_PLACE: "in_place", SpecChange.RESTART: "restarted"}


def job_plan(
    *, principal: Principal, cell: Cell, job_spec: spec.JobSpecification, source: str = FILE, undo: bool = False
) -> JobPlan:
    """Return whether the job would be admitted, and which tasks would change. The call changes nothing, but for a
    short time it locks the same rows as a submission or an update. `source`, `undo`: as in `updates.job_update`.

    Raises `NotFound` or `Forbidden` if the caller may not write jobs of this tenant. Other rejections are part of the
    plan.
    """
    require_tenant(principal, Action.JOB_WRITE, job_spec.tenant, cell.name)
    problem: Rejected | None = None
    live = submit_and_kill.live_job(cell, job_spec)
    try:
        if undo and live is not None:
            updates.job_update(principal=principal, job=live, job_spec=job_spec, dry_run=True, undo=True, source=source)
        else:
            submit_and_kill.job_apply(principal=principal, cell=cell, job_spec=job_spec, dry_run=True, source=source)
    except Rejected as refusal:
        problem = refusal
    if source == FILE:
        (job_spec,) = with_scaled_values(cell, [job_spec])
    fits = tuple(guidance(cell, job_spec))
    quota = (
        ()
        if problem is not None and problem.code == "no-band"
        else quota_sentences(cell.name, quota_requests(live, job_spec))
    )
    plan = plan_between(live, job_spec)
    names = (*plan.names, *_weight_sentences(cell, job_spec)) if plan.action != "none" else plan.names
    return replace(plan, problem=problem, guidance=fits, names=names, quota=quota)


def quota_requests(live: Job | None, job_spec: spec.JobSpecification) -> list[AdmissionRequest]:
    """Return the requests to admission control of a submission, or of an update of the live job `live`."""
    if live is not None:
        return updates.quota_requests(live, job_spec)
    tenants = Tenant.objects.filter(name=job_spec.tenant)  # an SRE may name one that does not exist
    return [AdmissionRequest(tenant.id, tenant.name, job_spec.priority, job_spec.charged()) for tenant in tenants]


def plan_between(job: Job | None, job_spec: spec.JobSpecification) -> JobPlan:
    """Return the effect that `job_spec` would have on the live job `job`, or as a new job if `job` is None. Quota is
    not checked.
    """
    if job is None:
        added = Share(job_spec.tasks, ((0, job_spec.tasks - 1),))
        return JobPlan(
            "submit",
            job_spec.name,
            1,
            {"added": added},
            names=_published_changes(None, job_spec),
            notes=_notes(job_spec),
        )
    current = updates.spec_of(job)
    revision = revisions.revision_of(job)
    if current.digest() == job_spec.digest():
        return JobPlan("none", job.name, job.spec_version, _tasks(current, job_spec), revision=revision)
    return JobPlan(
        "update",
        job.name,
        job.spec_version + 1,
        _tasks(current, job_spec),
        job_spec.max_down(),
        names=_published_changes(current, job_spec),
        notes=_budget_notes(current, job_spec),
        changes=tuple(format_changes(current.to_json(), job_spec.to_json())),
        revision=revision,
    )


def _notes(new: spec.JobSpecification) -> tuple[str, ...]:
    notes = [dependency_sentence(sorted(new.after.items()))] if new.after else []
    notes += [bound_sentence(new.max_running)] if 0 < new.max_running < new.tasks else []
    return (*notes, *_budget_notes(None, new))


def _budget_notes(old: spec.JobSpecification | None, new: spec.JobSpecification) -> tuple[str, ...]:
    """Return what the disruption budget allows, if it is new or allows something else than before."""
    before, after = _format_budget(old), _format_budget(new)
    if before and not after:
        return (f"The disruption budget ends. Drains may have {new.max_down()} tasks down at once (update.max_down).",)
    return (after,) if after != before else ()


def _format_budget(one: spec.JobSpecification | None) -> str:
    if one is None:
        return ""
    limits = one.disruption_limits
    share = limits.max_down if isinstance(limits.max_down, str) else ""
    return budget_sentence(
        down=one.budget_down, share=share, most=limits.max_disruptions, window_s=limits.window_s, drains=one.max_down()
    )


def _published_changes(old: spec.JobSpecification | None, new: spec.JobSpecification) -> tuple[str, ...]:
    return name_changes.format_name_changes(old, new, ttl_s=settings.BORG_DNS_TTL) if new.kind == "job" else ()


def _weight_sentences(cell: Cell, new: spec.JobSpecification) -> tuple[str, ...]:
    """Return which share of the clients of its service the job gets, if the service has weights. Makes one query, or
    none for a job without a service.
    """
    service = new.labels.get(SERVICE_LABEL)
    if not service or new.kind != "job":
        return ()
    rows = ServiceWeighting.objects.filter(cell=cell, tenant__name=new.tenant, service=service).exclude(weights={})
    weights: dict[str, int] | None = rows.values_list("weights", flat=True).first()
    if weights is None:
        return ()
    track = track_of(new.name, new.labels)
    if not weights.get(track):
        return (
            f"Service {service} has weights, and track {track} has none, so the tasks get no clients of the service"
            " until `borgctl service weights` or `borgctl service switch` sends some to this track.",
        )
    share = format_number(100 * weights[track] / sum(weights.values()))
    return (f"Track {track} gets {share} % of the clients of service {service}.",)


def _tasks(old: spec.JobSpecification, new: spec.JobSpecification) -> dict[str, Share]:
    ranges: dict[str, list[tuple[int, int]]] = {}
    for first, last, kind in restart_rule.changes(old, new):
        ranges.setdefault(_NAMES[kind], []).append((first, last))
    if new.tasks > old.tasks:
        ranges["added"] = [(old.tasks, new.tasks - 1)]
    if new.tasks < old.tasks:
        ranges["removed"] = [(new.tasks, old.tasks - 1)]
    return {name: Share(sum(last - first + 1 for first, last in spans), tuple(spans)) for name, spans in ranges.items()}
