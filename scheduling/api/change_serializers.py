"""Serializers for the result when a job is submitted or changed: the effect, or the reason for the rejection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers
from rest_framework.response import Response

from quota.api.problems import ProblemSerializer
from quota.vocabulary.errors import Rejected
from scheduling.access import selectors
from scheduling.api.job_serializers import JobSerializer
from scheduling.api.suggested_limits import FitSerializer, fit_document
from scheduling.jobs.health import new_with_details
from scheduling.jobs.plans import JobPlan
from scheduling.models import Cell, Job
from scheduling.spec.job_spec import JobSpecification

OUTCOMES = ["submitted", "updated", "unchanged", "refused"]
_SHARES = ("added", "removed", "restarted", "in_place", "kept")


class ChangeSerializer(serializers.Serializer[Any]):
    """The effect of submitting or changing a job. If `dry_run` is true, nothing was changed.

    `tasks`: how many tasks are added, removed, restarted, changed in place and kept. `ranges`: the indexes of these
    tasks, as pairs [first, last].
    """

    outcome = serializers.ChoiceField(OUTCOMES)
    dry_run = serializers.BooleanField()
    version = serializers.IntegerField()
    sentence = serializers.CharField()
    tasks = inline_serializer("Shares", {name: serializers.IntegerField() for name in _SHARES})
    ranges = serializers.DictField(
        child=serializers.ListField(child=serializers.ListField(child=serializers.IntegerField()))
    )
    max_down = serializers.IntegerField()
    problem = ProblemSerializer(allow_null=True)
    job = JobSerializer(allow_null=True)
    guidance = FitSerializer(many=True, help_text="How many of the tasks fit the cell. Only in the answer to a plan.")
    names = serializers.ListField(
        child=serializers.CharField(),
        help_text="Sentences about changes that affect clients which look up the job's name: TTL, weights, service.",
    )
    quota = serializers.ListField(
        child=serializers.CharField(),
        help_text="Sentences about the quota that is used before and after the change. Only in the answer to a plan.",
    )
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="Sentences about when the tasks of a new job start."
    )
    changes = serializers.ListField(
        child=serializers.CharField(),
        help_text="A line for each field that an update changes, such as `task.limit.cpu: 1 → 2`.",
    )
    job_revision = serializers.CharField(
        help_text="The revision of the job before the change; `new` if there was no live job. A request whose header "
        "`If-Match` has this value is rejected with status 412 if the job has changed since."
    )


class VerdictSerializer(serializers.Serializer[Any]):
    """The result for one job of a bulk request. `uid` is the id of the live job."""

    name = serializers.CharField()
    tenant = serializers.CharField()
    outcome = serializers.ChoiceField(["submitted", "unchanged", "refused"])
    uid = serializers.UUIDField(allow_null=True)
    problem = ProblemSerializer(allow_null=True)


BulkSerializer = inline_serializer(
    "BulkVerdicts",
    {
        "submitted": serializers.IntegerField(),
        "unchanged": serializers.IntegerField(),
        "refused": serializers.IntegerField(),
        "dry_run": serializers.BooleanField(),
        "results": VerdictSerializer(many=True),
    },
)


def problem_document(refused: Rejected | None) -> dict[str, Any] | None:
    """Return the REST document that describes a rejection, or None if there is no rejection."""
    if refused is None:
        return None
    return {
        "type": f"urn:borg:{refused.code}",
        "status": refused.status,
        "code": refused.code,
        "detail": refused.detail,
        "fields": refused.fields,
        "figures": refused.figures,
    }


def change_document(
    plan: JobPlan, outcome: str, *, rehearsed: bool, job: Job | None, extra: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the REST document that describes the change of a job. `rehearsed`: whether it was a dry run. `extra`:
    names of the resources that the cell defines itself.
    """
    return {
        "outcome": outcome,
        "dry_run": rehearsed,
        "version": plan.version,
        "sentence": plan.sentence(),
        "tasks": {name: plan.tasks[name].count if name in plan.tasks else 0 for name in _SHARES},
        "ranges": {name: [list(span) for span in share.ranges] for name, share in plan.tasks.items()},
        "max_down": plan.max_down,
        "problem": problem_document(plan.problem),
        "job": JobSerializer(job, context={"extra": job.cell.extra_resources}).data if job else None,
        "guidance": [fit_document(fit, extra=extra) for fit in plan.guidance],
        "names": list(plan.names),
        "quota": list(plan.quota),
        "notes": list(plan.notes),
        "changes": list(plan.changes),
        "job_revision": plan.revision,
    }


def change_response(
    cell: Cell, job_spec: JobSpecification, plan: JobPlan, outcome: str, rehearsed: bool, *, job: Job | None = None
) -> Response:
    """Return the response to a request that submits or updates a job. `plan`: the effect on the job's tasks. `outcome`:
    submitted, updated or unchanged. `rehearsed`: whether the request was a dry run. `job`: the changed job; by default
    the last job that had this name.
    """
    if rehearsed:
        job = None
    elif job is None or not new_with_details(job, job_spec):
        rows = Job.objects.filter(cell=cell, tenant__name=job_spec.tenant, name=job_spec.name)
        job = selectors.with_details(rows.filter(pk=job.pk) if job is not None else rows).latest("id")
    document = change_document(plan, outcome, rehearsed=rehearsed, job=job)
    return Response(document, status=201 if outcome == "submitted" and not rehearsed else 200)
