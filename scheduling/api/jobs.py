"""REST views of jobs. Each view checks the request, calls a service and serializes the result."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quota.dry_run import DRY_RUN, dry_run
from quota.paging import IdPaging, MergedRows, paged
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.permissions import Action
from scheduling.access import selectors
from scheduling.access.tenant_permission import require_tenant
from scheduling.api.base import BodyParser, CellView, EventPaging, valid, whole
from scheduling.api.cells import event_names, events_page
from scheduling.api.change_serializers import (
    BulkSerializer,
    ChangeSerializer,
    change_document,
    change_response,
    problem_document,
)
from scheduling.api.explanations import WhySerializer
from scheduling.api.job_file_schema import JobFileSerializer
from scheduling.api.job_serializers import (
    JobDetailSerializer,
    JobSerializer,
    KilledSerializer,
    KillSerializer,
    UpdateDetailSerializer,
    VersionSerializer,
)
from scheduling.api.list_filters import LABEL, OF_JOBS, PREFIX, TENANT
from scheduling.api.preconditions import IF_REVISION, KEY, idempotency_key, if_revision
from scheduling.api.task_serializers import EventSerializer
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.core.vocabulary.states import JobState
from scheduling.history.archive.reading import archived_events_of_job
from scheduling.history.archive.recall import with_archived
from scheduling.jobs import plans, updates, why
from scheduling.jobs.actions.autoscaled import FILE, with_scaled_values
from scheduling.jobs.dependencies.explanations import dependencies_of
from scheduling.jobs.submit_and_kill import job_apply, job_kill, job_submit, jobs_submit_bulk, live_job, spec_for
from scheduling.models import ArchivedJob, Cell, Job
from scheduling.spec import job_spec as spec
from scheduling.spec import parser

CONFIRM = OpenApiParameter(
    "confirm",
    OpenApiTypes.INT,
    description="Number of running tasks that may stop. Required if they are a large share of the cell.",
)
_FILTERS = [
    TENANT,
    OpenApiParameter("state", OpenApiTypes.STR, enum=["pending", "running", "dead", "live"]),
    PREFIX,
    LABEL,
    OF_JOBS,
]


class JobFileView(CellView):
    """A view for requests whose body is a job file. The view passes `dry_run` on to the service that it calls."""

    rehearses_itself = True
    parser_classes = (BodyParser,)


class JobsView(JobFileView):
    pagination_class = IdPaging

    @extend_schema(operation_id="jobs_list", parameters=_FILTERS, responses=JobSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the jobs that you may see. Dead jobs are included unless you give a state. Jobs that are only in the
        archive are included if the state is `dead`.
        """
        found = self.cell(cell)
        query = request.query_params
        tenant, state, labels = query.get("tenant", ""), query.get("state", ""), query.getlist("label")
        chosen: dict[str, Any] = {"tenant": tenant, "labels": labels, "selector": query.get("selector", "")}
        chosen["prefix"] = query.get("prefix", "")
        rows = selectors.jobs_visible(self.principal, found, state=state, **chosen)
        context = {"extra": found.extra_resources}

        def shown(page: list[Job | ArchivedJob]) -> Iterable[Any]:
            return JobSerializer(selectors.detailed(found, with_archived(page)), many=True, context=context).data

        if state != JobState.DEAD:
            return paged(self, rows, shown)
        archived = selectors.archived_jobs_visible(self.principal, found, **chosen)
        return paged(self, MergedRows(rows, archived), shown)

    @extend_schema(
        operation_id="jobs_submit",
        parameters=[DRY_RUN, KEY, IF_REVISION],
        request=JobFileSerializer,
        responses={200: ChangeSerializer, 201: ChangeSerializer},
    )
    def post(self, request: Request, cell: str) -> Response:
        """Submit a job. If a live job already has this name, the answer is `unchanged` if the specs are equal, and a
        conflict if they differ.
        """
        found, rehearsed, key = self.cell(cell), dry_run(request), idempotency_key(request)
        given = spec_for(principal=self.principal, cell=found, file=request.data)  # type: ignore[arg-type]
        (job_spec,) = with_scaled_values(found, [given])
        done = job_submit(
            principal=self.principal,
            cell=found,
            job_spec=job_spec,
            key=key,
            dry_run=rehearsed,
            if_revision=if_revision(request),
            given=given,
        )
        plan = plans.plan_between(done.job if done.outcome == "unchanged" else None, job_spec)
        return change_response(found, job_spec, plan, done.outcome, rehearsed, job=done.job)


class BulkView(JobFileView):
    @extend_schema(
        operation_id="jobs_submit_bulk",
        parameters=[DRY_RUN],
        request=JobFileSerializer(many=True),
        responses=BulkSerializer,
    )
    def post(self, request: Request, cell: str) -> Response:
        """Submit many jobs. The answer has one result per job, in order. A rejected job does not affect the others."""
        found, rehearsed = self.cell(cell), dry_run(request)
        files = parser.decode(request.data)  # type: ignore[arg-type]
        if not isinstance(files, list):
            raise invalid("file", "the body is not a list; send a list of job files", "invalid-spec")
        verdicts = jobs_submit_bulk(principal=self.principal, cell=found, files=files, dry_run=rehearsed)
        results = [
            {
                "name": verdict.name,
                "tenant": verdict.tenant,
                "outcome": verdict.outcome,
                "uid": verdict.job.uid if verdict.job else None,
                "problem": problem_document(verdict.problem),
            }
            for verdict in verdicts
        ]
        numbers = {
            outcome: sum(verdict.outcome == outcome for verdict in verdicts)
            for outcome in ("submitted", "unchanged", "refused")
        }
        return Response({**numbers, "dry_run": rehearsed, "results": results})


class JobView(JobFileView):
    @extend_schema(operation_id="jobs_get", responses=JobDetailSerializer)
    def get(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Return the live job of this name, with its spec and an explanation of its state. If no live job has the name,
        return the last job that had it.
        """
        found = self.job(cell, tenant, job)
        found.told = why.job_sentences(found)  # type: ignore[attr-defined]
        found.file = selectors.spec_shown(self.principal, found, selectors.job_current_spec(found))  # type: ignore[attr-defined]
        found.waits_for = dependencies_of(found) if found.file.get("after") else []  # type: ignore[attr-defined]
        return Response(JobDetailSerializer(found, context={"extra": found.cell.extra_resources}).data)

    @extend_schema(
        operation_id="jobs_apply",
        parameters=[DRY_RUN, KEY, IF_REVISION],
        request=JobFileSerializer,
        responses={200: ChangeSerializer, 201: ChangeSerializer},
    )
    def put(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Apply a job file: submit the job if it does not exist, update it if its spec differs, and otherwise change
        nothing. Idempotent.
        """
        found, rehearsed, key = self.cell(cell), dry_run(request), idempotency_key(request)
        job_spec = _spec_of(self, found, tenant, job)
        live = live_job(found, job_spec)
        (shown,) = with_scaled_values(found, [job_spec])
        plan = plans.plan_between(live, shown)
        done = job_apply(
            principal=self.principal,
            cell=found,
            job_spec=job_spec,
            key=key,
            dry_run=rehearsed,
            if_revision=if_revision(request),
        )
        if done.outcome == "submitted" and live is not None:  # an earlier request with this key submitted it
            plan = plans.plan_between(None, job_spec)
        return change_response(found, shown, plan, done.outcome, rehearsed, job=done.job)

    @extend_schema(operation_id="jobs_delete", parameters=[DRY_RUN, CONFIRM], responses=KilledSerializer)
    def delete(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Kill the job. Its name can be used again when its tasks are dead. Idempotent."""
        confirm = whole(request, "confirm", 0, low=0, high=2**31 - 1)
        return _kill(self, self.job(cell, tenant, job), None, "", confirm=confirm)


class PlanView(JobFileView):
    @extend_schema(operation_id="jobs_plan", request=JobFileSerializer, responses=ChangeSerializer)
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Return the effect of submitting the job file, or the reason why it would be rejected. Changes nothing."""
        found = self.cell(cell)
        job_spec = _spec_of(self, found, tenant, job)
        plan = plans.job_plan(principal=self.principal, cell=found, job_spec=job_spec)
        outcomes = {"submit": "submitted", "update": "updated", "none": "unchanged"}
        outcome = "refused" if plan.problem else outcomes[plan.action]
        return Response(change_document(plan, outcome, rehearsed=True, job=None, extra=found.extra_resources))


class UpdateView(JobFileView):
    @extend_schema(operation_id="jobs_update_get", responses=UpdateDetailSerializer)
    def get(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Return the last update of the job, which may still be in progress."""
        update = selectors.job_update_shown(self.job(cell, tenant, job))
        if update is None:
            raise NotFound("update", f"{cell}/{tenant}/{job}")
        update.tasks_followed = selectors.update_followers(update)  # type: ignore[attr-defined]
        return Response(UpdateDetailSerializer(update).data)

    @extend_schema(
        operation_id="jobs_update",
        parameters=[DRY_RUN, IF_REVISION],
        request=JobFileSerializer,
        responses=ChangeSerializer,
    )
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Update a live job to another spec. The tasks change to the new spec a few at a time."""
        found = self.job(cell, tenant, job)
        job_spec, rehearsed = _spec_of(self, found.cell, tenant, job), dry_run(request)
        (shown,) = with_scaled_values(found.cell, [job_spec])
        plan = plans.plan_between(found, shown)
        done = updates.job_update(
            principal=self.principal,
            job=found,
            job_spec=job_spec,
            dry_run=rehearsed,
            if_revision=if_revision(request),
            source=FILE,
        )
        return change_response(found.cell, shown, plan, done.outcome, rehearsed)


class UndoView(CellView):
    rehearses_itself = True

    @extend_schema(operation_id="jobs_undo", parameters=[DRY_RUN], request=None, responses=ChangeSerializer)
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Roll a job back to the spec before the current one."""
        found, rehearsed = self.job(cell, tenant, job), dry_run(request)
        require_tenant(self.principal, Action.JOB_WRITE, tenant, cell)
        before = updates.spec_before(found)
        plan = plans.plan_between(found, before)
        done = updates.job_undo(principal=self.principal, job=found, dry_run=rehearsed)
        return change_response(found.cell, before, plan, done.outcome, rehearsed)


class KillView(CellView):
    rehearses_itself = True

    @extend_schema(operation_id="jobs_kill", parameters=[DRY_RUN], request=KillSerializer, responses=KilledSerializer)
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Kill the job, or some of its tasks. Idempotent."""
        found = self.job(cell, tenant, job)
        given = valid(KillSerializer, request.data)
        return _kill(self, found, given.get("indexes"), given["reason"], confirm=given["confirm"])


class VersionsView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="jobs_versions", responses=VersionSerializer(many=True))
    def get(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """List all versions of the job's spec, oldest first."""
        found = self.job(cell, tenant, job)
        shown = partial(selectors.spec_shown, self.principal, found)
        return self.page(selectors.specs_of(found), VersionSerializer, shown=shown)


class JobEventsView(CellView):
    pagination_class = EventPaging

    @extend_schema(operation_id="jobs_events", responses=EventSerializer(many=True))
    def get(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """List events of the job and its tasks, newest first."""
        found = self.job(cell, tenant, job)
        return events_page(self, selectors.events_of_job(found), archived_events_of_job(found))


class WhyView(CellView):
    @extend_schema(
        operation_id="jobs_why",
        parameters=[OpenApiParameter("index", OpenApiTypes.INT, description="Explain only the task of this index.")],
        responses=WhySerializer,
    )
    def get(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Explain why the job, or one of its tasks, is in its state."""
        found = self.job(cell, tenant, job)
        index = whole(request, "index", -1, low=0, high=MAX_TASKS - 1)
        if index < 0:
            detail = why.explain_job(found, self.principal)
        else:
            detail = why.explain_task(found, selectors.task_at(found, index), self.principal)
        return Response(WhySerializer(detail, context=event_names(detail.chain)).data)


def _spec_of(view: CellView, cell: Cell, tenant: str, job: str) -> spec.JobSpecification:
    """Read a job file from the body of the request, and return its spec. The tenant and the job are those in the URL.

    The permission is checked first, so that a caller without permission learns nothing about the job.
    """
    require_tenant(view.principal, Action.JOB_WRITE, tenant, cell.name)
    file = parser.decode(view.request.data)  # type: ignore[arg-type]
    if isinstance(file, dict):
        file = {"name": job, **file}
    return spec_for(principal=view.principal, cell=cell, file=file, tenant=tenant, name=job)


def _kill(view: CellView, job: Job, indexes: list[int] | None, reason: str, *, confirm: int | None) -> Response:
    rehearsed = dry_run(view.request)
    killed = job_kill(
        principal=view.principal, job=job, indexes=indexes, reason=reason, dry_run=rehearsed, confirm=confirm
    )
    return Response({"killed": killed, "dry_run": rehearsed})
