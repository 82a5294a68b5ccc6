"""Changes of a pending job that may let the scheduler place it: the candidates that a master tries (§2.6).

    spec, reasons ─► patches of the job file ─► patched specs ─► TrialJob: what the scheduler would have to place

Each candidate is tried as the patched job file parses. So what was tried and what an update does are the same. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quota.vocabulary.bands import FREE_PRIORITY, Band
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import CPU, DISK, DISK_BANDWIDTH, NAMES, RAM, format_input
from scheduling.core.vocabulary.reasons import WHOLE_CORES, ChangeKind, ReasonCode, SuggestedChange
from scheduling.core.vocabulary.requirement import Requirement
from scheduling.core.vocabulary.trials import Lowering, TrialGroup, TrialJob, cap_of, lowered
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.merge_patch import merged

# Limits that the search lowers. Shares of accelerators, ports and named resources are only lowered as reasons suggest.
LOWERED = (CPU, RAM, DISK, DISK_BANDWIDTH)
# So many constraints are dropped, one at a time.
MOST_CONSTRAINTS = 12
_SPREAD = {
    ReasonCode.MAX_PER_MACHINE.value: "max_per_machine",
    ReasonCode.MAX_PER_RACK.value: "max_per_rack",
    ReasonCode.MAX_PER_POWER_DOMAIN.value: "max_per_power_domain",
}
Parse = Callable[[dict[str, Any]], JobSpecification]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change of a job. `kind`: request or band. `patch`: the JSON merge patch of the job file. `spec`: the job file
    after the patch. `subject`: candidates with equal subjects change the same fields.
    """

    key: str
    kind: str
    patch: dict[str, Any]
    spec: JobSpecification
    subject: tuple[str, ...] = ()


def trial_job(job_spec: JobSpecification, indexes: Sequence[int], *, job_id: int) -> TrialJob:
    """Return what the scheduler has to place for the tasks `indexes` of a job. `job_id`: the job in the cell, or 0."""
    numbers: dict[int, int] = {}
    segments = list(job_spec.segments())
    place = 0
    for index in sorted(indexes):
        while place < len(segments) and segments[place][1] < index:
            place += 1
        if place < len(segments):
            numbers[place] = numbers.get(place, 0) + 1
    tasks: dict[Requirement, int] = {}
    for place, number in numbers.items():
        requirement = job_spec.requirement_of(segments[place][2])
        tasks[requirement] = tasks.get(requirement, 0) + number
    groups = tuple(TrialGroup(requirement, number) for requirement, number in tasks.items())
    run_s = job_spec.max_run_s or 0.0
    return TrialJob(
        groups, job_spec.priority, job_spec.latency_sensitive, job_spec.gang, job_id, run_s, job_spec.tenant
    )


def request_candidates(job_spec: JobSpecification, changes: Iterable[SuggestedChange], parse: Parse) -> list[Candidate]:
    """Return changes of the request: those that the reasons suggest, and each constraint dropped. Patches that do not
    change the job, or that its cell would reject, are left out.
    """
    patches: list[tuple[dict[str, Any], tuple[str, ...]]] = []
    for change in changes:
        patch = _patch(job_spec, change)
        if patch is not None:
            patches.append((patch, _subject(change)))
    for constraint in [one for one in job_spec.base.constraints if one.hard][:MOST_CONSTRAINTS]:
        dropped = SuggestedChange(constraint.attribute, "", 0, ChangeKind.DROP, constraint=constraint)
        patch = _patch(job_spec, dropped)
        if patch is not None:
            patches.append((patch, _subject(dropped)))
    found: list[Candidate] = []
    for patch, subject in patches:
        if any(one.patch == patch for one in found):
            continue
        new = patched(job_spec, patch, parse)
        if new is not None:
            found.append(Candidate(f"request-{len(found)}", "request", patch, new, subject))
    return found


def priority_candidates(
    job_spec: JobSpecification, bands: Sequence[Band], parse: Parse, *, before: int | None = None
) -> list[Candidate]:
    """Return the job in each other band: with the lowest priority of a higher band, the highest priority of a lower
    band, and the free priority. `before`: a priority that the job had before, if it should be restored.
    """
    own = job_spec.priority
    wanted = [] if own == FREE_PRIORITY else [FREE_PRIORITY]
    for band in bands:
        if not band.low <= own <= band.high:
            wanted.append(band.low if band.low > own else band.high)
    if before is not None and before > own:
        wanted.insert(0, before)
    found = []
    for priority in dict.fromkeys(wanted):
        patch = {"priority": priority}
        new = patched(job_spec, patch, parse)
        if new is not None:
            found.append(Candidate(f"priority-{priority}", "band", patch, new, ("priority",)))
    return found


def lowerings(base: TrialJob) -> tuple[Lowering, ...]:
    """Return the resources whose limits the master lowers: each alone, then all together."""
    asked = [r for r in LOWERED if any(group.requirement.limit[r] for group in base.groups)]
    alone = [Lowering(f"lower-{NAMES[r]}", (r,)) for r in asked]
    return (*alone, *([Lowering("lower-all", tuple(asked))] if len(asked) > 1 else ()))


def lowered_candidate(
    job_spec: JobSpecification, base: TrialJob, lowering: Lowering, parts: int, indexes: Sequence[int], parse: Parse
) -> Candidate | None:
    """Return the change that a lowering stands for. Return None if the patched job file does not request exactly what
    was tried, as may be with overrides of single tasks.
    """
    caps = {r: cap_of(base, r, parts) for r in lowering.resources}
    limit = {NAMES[r]: format_input(NAMES[r], cap) for r, cap in caps.items() if cap < job_spec.base.limit[r]}
    if not limit:
        return None
    patch = {"task": {"limit": limit}}
    new = patched(job_spec, patch, parse)
    if new is None or trial_job(new, indexes, job_id=base.job_id) != lowered(base, lowering.resources, parts):
        return None
    return Candidate(lowering.key, "request", patch, new, tuple(sorted(limit)))


def patched(job_spec: JobSpecification, patch: dict[str, Any], parse: Parse) -> JobSpecification | None:
    """Return the spec after a merge patch of its job file. Return None if it is equal, or if the cell rejects it."""
    try:
        new = parse(merged(job_spec.to_json(), patch))
    except Rejected:
        return None
    return None if new.canonical == job_spec.canonical else new


def _patch(job_spec: JobSpecification, change: SuggestedChange) -> dict[str, Any] | None:
    """Return the merge patch of a suggested change. Return None if a job file cannot contain the change, for example
    because the constraint follows from a package.
    """
    if change.kind is ChangeKind.COMBINED:
        result: dict[str, Any] = {}
        constraints = list(job_spec.base.constraints)
        for part in change.parts:
            if part.constraint is not None:
                if part.constraint not in constraints:
                    return None
                constraints.remove(part.constraint)
                result = merged(result, {"task": {"constraints": _as_json(constraints)}})
                continue
            patch = _patch(job_spec, part)
            if patch is None:
                return None
            result = merged(result, patch)
        return result
    if change.constraint is not None:
        constraints = list(job_spec.base.constraints)
        if change.constraint not in constraints:
            return None
        place = constraints.index(change.constraint)
        constraints[place : place + 1] = [change.instead] if change.instead is not None else []
        return {"task": {"constraints": _as_json(constraints)}}
    if change.subject in _SPREAD:
        return {"spread": {_SPREAD[change.subject]: int(change.to)}}
    if change.subject == WHOLE_CORES:
        return {"task": {"limit": {"cpu": str(change.to)}}}
    names = (*NAMES, *job_spec.extra)
    if change.kind is ChangeKind.LOWER and change.subject in names and change.subject != "ports":
        amount = int(change.to)
        return {"task": {"limit": {change.subject: format_input(change.subject, amount)}}}
    return None


def _as_json(constraints: Iterable[Any]) -> list[Any]:
    return [msgspec.to_builtins(constraint) for constraint in constraints]


def _subject(change: SuggestedChange) -> tuple[str, ...]:
    if change.kind is ChangeKind.COMBINED:
        return tuple(sorted(name for part in change.parts for name in _subject(part)))
    if change.constraint is not None:
        return (f"constraint {change.constraint.attribute} {change.kind.value}",)
    return ("cpu" if change.subject == WHOLE_CORES else change.subject,)
