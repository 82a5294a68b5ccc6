"""Sentences about cures, and the commands and links that apply them. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from quota.vocabulary.bands import FREE_PRIORITY
from scheduling.core.vocabulary.requirement import spelled
from scheduling.cures.cure_list import Cure, CureKind
from scheduling.spec.job_spec import JobSpecification

_BOUNDS = {
    "max_per_machine": "tasks per machine",
    "max_per_rack": "tasks per rack",
    "max_per_power_domain": "tasks per power domain",
}
# A link with a longer patch might be cut. The page then opens with the job file as it is.
_MOST_QUERY = 4_000


def request_change(old: JobSpecification, new: JobSpecification, patch: Mapping[str, Any]) -> str:
    """Return what a patch of the request changes, such as `Lower cpu per task from 4 to 2500m.`"""
    parts = []
    task = patch.get("task", {})
    before, after = old.base.to_json(extra=old.extra), new.base.to_json(extra=new.extra)
    for name in task.get("limit", {}):
        was, becomes = before["limit"].get(name), after["limit"].get(name)
        parts.append(f"lower {name.replace('_', ' ')} per task from {was} to {becomes}")
    if "constraints" in task:
        gone = [one for one in old.base.constraints if one not in new.base.constraints]
        come = [one for one in new.base.constraints if one not in old.base.constraints]
        parts += (
            [f"replace the constraint {spelled(gone[0])} by {spelled(come[0])}"]
            if len(gone) == len(come) == 1
            else [f"drop the constraint {spelled(one)}" for one in gone]
        )
    for name, most in patch.get("spread", {}).items():
        parts.append(f"allow {most} {_BOUNDS.get(name, name)}")
    return _sentence(", and ".join(parts))


def priority_change(old: int, new: int, band: str) -> str:
    """Return what a change of the priority means. `band`: the name of the new band."""
    if new == FREE_PRIORITY:
        return f"Change the priority from {old} to {FREE_PRIORITY}, which is free; the tasks can then be preempted."
    return f"Change the priority from {old} to {new} (band {band})."


def cell_change(job_spec: JobSpecification, cell: str) -> str:
    """Return what it means to submit the job in another cell."""
    needs = [what for what, there in (("packages", _packages(job_spec)), ("secrets", _secrets(job_spec))) if there]
    also = f" Its {' and '.join(needs)} must exist there." if needs else ""
    return f"Submit the job in cell {cell}, and kill it here when its tasks run there.{also}"


def patch_command(job: str, patch: Mapping[str, Any], revision: str) -> str:
    """Return the command that applies a patch. `job`: the full name, `cell/tenant/job`. `revision`: of the job. If the
    job has changed meanwhile, the command changes nothing.
    """
    text = shlex.quote(json.dumps(patch, separators=(",", ":"), ensure_ascii=False))
    return f"borgctl patch {job} {text} --if-revision {revision}"


def patch_path(path: str, uid: str, patch: Mapping[str, Any]) -> str:
    """Return the link to the page that updates a job, with the patched job file in the form. `path`: of the page."""
    query = urlencode({"uid": uid, "patch": json.dumps(patch, separators=(",", ":"))})
    return f"{path}?{query}" if len(query) <= _MOST_QUERY else f"{path}?{urlencode({'uid': uid})}"


def copy_commands(job: str, cell: str) -> tuple[str, ...]:
    """Return the commands that submit the job in another cell and kill it here."""
    return f"borgctl copy {job} --to {cell}", f"borgctl kill {job}"


def copy_path(path: str, cell: str, tenant: str, copied: str) -> str:
    """Return the link to the page that submits a job, with a copy of the job file in the form. `copied`: the full name
    of the job.
    """
    return f"{path}?{urlencode({'cell': cell, 'tenant': tenant, 'copy': copied})}"


def effect_of(cure: Cure) -> str:
    """Return how many tasks would be placed, how many others they preempt, and how many tasks restart. The text is
    empty for a cure that places nothing.
    """
    if not cure.places:
        return ""
    text = f"{cure.places} of {cure.tasks} tasks" if cure.places < cure.tasks else _number(cure.tasks, "task")
    text = f"Places {text} at once"
    if cure.preempts:
        text += f", preempts {_number(cure.preempts, 'task')} of lower priority"
    if cure.restarts:
        what = "stops" if cure.kind is CureKind.CELL else "restarts"
        text += f", {what} {_number(cure.restarts, 'running task')}"
    return f"{text}."


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _packages(job_spec: JobSpecification) -> Sequence[str]:
    return [name for _, _, task in job_spec.segments() for name in task.packages]


def _secrets(job_spec: JobSpecification) -> Sequence[str]:
    return [str(one) for _, _, task in job_spec.segments() for one in task.secrets]
