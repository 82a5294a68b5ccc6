"""The kinds of files that `borgctl apply` knows: how each is planned, written, listed by its owner, and pruned.

A new kind is one entry in `KINDS`. Its list must accept a label selector, and its path must have `plan/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from portal.cli import config_files, origin_labels
from portal.cli.config_files import ConfigReference
from portal.cli.context import Context, JobReference
from portal.cli.cron import KIND as CRON
from portal.cli.cron import CronReference
from portal.cli.failure import CommandFailed
from portal.cli.jobs import body_of, target_of
from portal.cli.paths import part
from portal.cli.templates import KIND as TEMPLATE
from portal.cli.templates import TemplateReference
from portal.cli.workflows import KIND as WORKFLOW
from portal.cli.workflows import WorkflowReference

LABEL = origin_labels.APPLIED_BY
ALLOC_SET, JOB, CONFIG = "AllocSet", "Job", config_files.KIND
_GONE = "its file is gone (borgctl apply --prune)"


@dataclass(frozen=True)
class Kind:
    """A kind of file. `reference`: the class of its full names. `listed`: the last part of the path of its list, and
    `query`: parameters of this list. `end`: what `--prune` does, in one word. `submitted`: parameters of the requests
    that plan and write it. `in_cells`: whether it belongs to a cell.
    """

    name: str
    reference: type[JobReference]
    listed: str
    end: str
    query: Mapping[str, Any] = field(default_factory=dict)
    submitted: Mapping[str, Any] = field(default_factory=dict)
    in_cells: bool = True
    matches: Callable[[dict[str, Any]], bool] = lambda row: True

    def named(self, cell: str, tenant: str, name: str) -> JobReference:
        return self.reference(cell if self.in_cells else "", tenant, name)

    def body(self, spec: dict[str, Any], job: JobReference) -> dict[str, Any]:
        """Return the request for a file. Raises `CommandFailed` if the file cannot be sent."""
        return body_of(spec, job) if self.in_cells else config_files.content_of(spec)

    def plan(self, session: Context, job: JobReference, body: dict[str, Any]) -> dict[str, Any]:
        """Return the API's answer about what would change."""
        answer: dict[str, Any] = session.client.post(f"{job.path}plan/", body, **self.submitted)
        return answer

    def write(self, session: Context, job: JobReference, body: dict[str, Any], plan: dict[str, Any]) -> None:
        """Make the change of a plan. The portal rejects it if the object has changed since the plan."""
        if self.name == CONFIG:
            session.client.put(job.path, {**body, "if_version": plan["newest_version"]})
        elif self.name == WORKFLOW:
            session.client.put_once(job.path, body, **self.submitted)
        else:
            session.client.put(job.path, body, if_revision=plan.get("job_revision") or None)

    def prune(self, session: Context, job: JobReference) -> None:
        """End or delete an object whose file is gone."""
        if self.end == "delete":
            session.client.delete(job.path)
        else:
            body = {"confirm": None, **({"reason": _GONE} if self.end == "kill" else {})}
            session.client.post(f"{job.path}{self.end}/", body)

    def owned(self, session: Context, cells: list[str], tenants: list[str], owner: str) -> Iterator[JobReference]:
        """Yield the objects of these cells and tenants that have the label of the owner. Older portals do not have all
        kinds, and answer "not found".
        """
        for cell in cells if self.in_cells else [""]:
            for tenant in tenants:
                base = f"/api/v1/cells/{part(cell)}/" if self.in_cells else f"/api/v1/tenants/{part(tenant)}/"
                query: dict[str, Any] = {**self.query, **({"tenant": tenant} if self.in_cells else {})}
                rows = session.client.pages(f"{base}{self.listed}/", selector=f"{LABEL}={owner}", **query)
                try:
                    for row in rows:
                        # An older portal ignores a selector that it does not know.
                        if self.matches(row) and (row.get("labels") or {}).get(LABEL) == owner:
                            yield self.named(cell, tenant, row["name"])
                except CommandFailed as failed:
                    if failed.code != "not-found":
                        raise


_LIVE = {"state": "live"}
# In the order of changes. Pruning takes the opposite order, so that nothing is deleted that something else still uses.
KINDS = {
    kind.name: kind
    for kind in (
        Kind(CONFIG, ConfigReference, "configs", "delete", in_cells=False),
        Kind(TEMPLATE, TemplateReference, "templates", "delete"),
        Kind(ALLOC_SET, JobReference, "jobs", "kill", _LIVE, matches=lambda row: row["kind"] == "alloc-set"),
        Kind(JOB, JobReference, "jobs", "kill", _LIVE, matches=lambda row: row["kind"] != "alloc-set"),
        Kind(CRON, CronReference, "cron-jobs", "delete"),
        Kind(
            *(WORKFLOW, WorkflowReference, "workflows", "cancel", _LIVE, {"if_changed": True}),
            matches=lambda row: row["state"] != "cancelling",
        ),
    )
}
PLACES = list(KINDS)


def kind_of(spec: dict[str, Any]) -> Kind:
    """Return the kind of a file. An unknown kind is taken for a job, which the portal rejects."""
    name = spec.get("kind")
    return KINDS.get(name, KINDS[JOB]) if isinstance(name, str) else KINDS[JOB]


def read(session: Context, spec: dict[str, Any], owner: str) -> tuple[Kind, JobReference, dict[str, Any]]:
    """Return the kind and the full name of the object in a file, and the request that writes it with the label of the
    owner. Raises `CommandFailed` if the file is wrong.
    """
    kind = kind_of(spec)
    place = target_of(session, spec if kind.in_cells else {**spec, "cell": "all"})
    labels = spec.get("labels") or {}
    marked = {**labels, LABEL: owner} if isinstance(labels, dict) else labels  # the portal rejects anything else
    job = kind.named(place.cell, place.tenant, place.name)
    return kind, job, kind.body({**spec, "labels": marked}, job)
