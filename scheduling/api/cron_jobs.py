"""REST views of cron jobs: apply, list, suspend, resume, run now, delete, and the history of runs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.api.problems import ProblemSerializer
from quota.dry_run import DRY_RUN, dry_run, rehearsal
from quota.paging import IdPaging, paged
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action
from scheduling.access.tenant_permission import require_tenant
from scheduling.api.base import BodyParser, CellView, valid
from scheduling.api.change_serializers import problem_document
from scheduling.api.preconditions import IF_REVISION, if_revision
from scheduling.cron import cron_jobs, cron_spec, selectors
from scheduling.models import CronJob, CronRun
from scheduling.spec.merge_patch import format_changes

_NEXT = 5
_FILTERS = [
    OpenApiParameter("tenant", OpenApiTypes.STR, description="Return only cron jobs of this tenant."),
    OpenApiParameter("selector", OpenApiTypes.STR, description="Return only cron jobs whose labels match."),
]


class CronFileSerializer(serializers.Serializer[Any]):
    """A job file of kind `CronJob`."""

    apiVersion = serializers.CharField(default="borg/v1")  # noqa: N815 - the file's own spelling
    kind = serializers.ChoiceField([cron_spec.KIND])
    name = serializers.CharField(max_length=cron_spec.MAX_NAME)
    tenant = serializers.CharField(required=False)
    cell = serializers.CharField(required=False)
    labels = serializers.DictField(child=serializers.CharField(), required=False)
    schedule = serializers.CharField(help_text="A cron line with five fields, or a nickname such as @daily.")
    time_zone = serializers.CharField(default="UTC", help_text="A time zone, such as Europe/Berlin.")
    overlap = serializers.ChoiceField(cron_spec.OVERLAPS, default=cron_spec.ALLOW)
    catch_up_s = serializers.FloatField(default=600.0, help_text="How late a run may start, in seconds.")
    keep_runs = serializers.IntegerField(default=100, help_text="How many runs the history keeps.")
    job = serializers.DictField(help_text="The job of a run: a job file without name, tenant and cell.")


class CronRunSerializer(serializers.ModelSerializer[CronRun]):
    outcome = serializers.ChoiceField(
        [CronRun.SUBMITTED, CronRun.SKIPPED, CronRun.MISSED, CronRun.REJECTED], help_text="What happened."
    )

    class Meta:
        model = CronRun
        fields = ("due_at", "outcome", "job_name", "job_uid", "code", "detail", "by", "at")


class CronJobSerializer(serializers.ModelSerializer[CronJob]):
    cell = serializers.CharField(source="cell.name")
    tenant = serializers.CharField(source="tenant.name")
    labels = serializers.DictField(child=serializers.CharField())
    owner = serializers.CharField(source="owner_name", help_text="The user with whose permissions runs are submitted.")
    suspended = serializers.SerializerMethodField(help_text="Whether no further runs start.")
    last_outcome = serializers.CharField(allow_null=True, help_text="Outcome of the last run.")
    last_due_at = serializers.DateTimeField(allow_null=True)

    class Meta:
        model = CronJob
        fields = (
            *("uid", "cell", "tenant", "name", "labels", "schedule", "time_zone", "overlap", "catch_up_s"),
            *("keep_runs", "tasks", "owner", "suspended", "next_at", "last_outcome", "last_due_at", "created_at"),
        )

    def get_suspended(self, row: CronJob) -> bool:
        return row.suspended_at is not None


class CronJobDetailSerializer(CronJobSerializer):
    job_revision = serializers.SerializerMethodField(help_text="For `If-Match`.")
    next_times = serializers.SerializerMethodField(help_text="The next due times, in the time zone of the cron job.")
    job = serializers.SerializerMethodField(help_text="The job of a run.")
    runs = serializers.SerializerMethodField(help_text="The newest runs.")

    class Meta(CronJobSerializer.Meta):
        fields = (*CronJobSerializer.Meta.fields, "job_revision", "next_times", "job", "runs")  # type: ignore[assignment]

    def get_job_revision(self, row: CronJob) -> str:
        return cron_jobs.revision_of(row)

    @extend_schema_field(serializers.ListField(child=serializers.DateTimeField()))
    def get_next_times(self, row: CronJob) -> list[str]:
        return [at.isoformat() for at in selectors.next_times(row, _NEXT)]

    @extend_schema_field(serializers.DictField())
    def get_job(self, row: CronJob) -> dict[str, Any]:
        return selectors.template_shown(self.context["principal"], row)

    @extend_schema_field(CronRunSerializer(many=True))
    def get_runs(self, row: CronJob) -> Any:
        return CronRunSerializer(selectors.history_of(row)[:20], many=True).data


CronChangeSerializer = inline_serializer(
    "CronChange",
    {
        "outcome": serializers.ChoiceField(["submitted", "updated", "unchanged", "refused"]),
        "job_revision": serializers.CharField(help_text="Revision before the change, for `If-Match`."),
        "sentence": serializers.CharField(),
        "next_times": serializers.ListField(child=serializers.DateTimeField()),
        "changes": serializers.ListField(
            child=serializers.CharField(), help_text="A line for each field that a change of the cron job changes."
        ),
        "dry_run": serializers.BooleanField(),
        "problem": ProblemSerializer(allow_null=True),
    },
)


class CronRunStartSerializer(serializers.Serializer[Any]):
    confirm = serializers.IntegerField(
        allow_null=True,
        default=None,
        min_value=0,
        help_text="Number of running tasks that the policy `replace` may stop. Required if they are a large share of"
        " the cell.",
    )


CronRunNowSerializer = inline_serializer(
    "CronRunNow", {"job": serializers.CharField(help_text="Name of the job."), "dry_run": serializers.BooleanField()}
)


class CronView(CellView):
    """A view of one cron job."""

    def cron_job(self, cell: str, tenant: str, name: str) -> CronJob:
        return selectors.cron_job_named(self.principal, self.cell(cell), tenant, name)

    def detail(self, row: CronJob) -> Response:
        row = selectors.cron_job_named(self.principal, row.cell, row.tenant.name, row.name)
        return Response(CronJobDetailSerializer(row, context={"principal": self.principal}).data)

    def applied(self, request: Request, cell: str, tenant: str, name: str, *, rehearsed: bool) -> dict[str, Any]:
        found = self.cell(cell)
        file: Any = request.data
        spec = cron_jobs.cron_spec_for(principal=self.principal, cell=found, file=file, tenant=tenant, name=name)
        rows = CronJob.objects.select_related("cell", "tenant")
        before = rows.filter(cell=found, tenant__name=spec.tenant, name=spec.name).first()
        changes = format_changes(cron_jobs.file_of(before), _fields_of(spec)) if before is not None else []
        done = cron_jobs.cron_apply(principal=self.principal, cell=found, spec=spec, if_revision=if_revision(request))
        words = {"submitted": "is new", "updated": "changes", "unchanged": "already has this spec"}
        times = selectors.next_times(done.cron_job, _NEXT)
        first = f"; it runs next at {times[0]:%Y-%m-%d %H:%M %Z}" if times else ""
        return {
            "outcome": done.outcome,
            "job_revision": cron_jobs.revision_of(before),
            "sentence": f"Cron job {spec.name} {words[done.outcome]}{first}.",
            "next_times": [at.isoformat() for at in times],
            "changes": changes if done.outcome == "updated" else [],
            "dry_run": rehearsed,
            "problem": None,
        }


def _fields_of(spec: cron_spec.CronSpecification) -> dict[str, Any]:
    """Return the fields of a cron job that its file sets."""
    return {name: value for name, value in spec.to_json().items() if name not in ("apiVersion", "kind")}


class CronJobsView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="cron_jobs_list", parameters=_FILTERS, responses=CronJobSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the cron jobs that you may see."""
        tenant, selector = request.query_params.get("tenant", ""), request.query_params.get("selector", "")
        rows = selectors.cron_jobs_visible(self.principal, self.cell(cell), tenant=tenant, selector=selector)
        return paged(self, rows, lambda page: CronJobSerializer(page, many=True).data)


class CronJobView(CronView):
    parser_classes = (BodyParser,)

    @extend_schema(operation_id="cron_jobs_get", responses=CronJobDetailSerializer)
    def get(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Return a cron job with its next due times and its newest runs."""
        return self.detail(self.cron_job(cell, tenant, name))

    @extend_schema(
        operation_id="cron_jobs_apply",
        parameters=[DRY_RUN, IF_REVISION],
        request=CronFileSerializer,
        responses=CronChangeSerializer,
    )
    def put(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Create or change a cron job. You become its owner: its runs have your permissions. Idempotent.

        An equal file changes nothing, also not the owner, unless the owner may not submit the job any more.
        """
        return Response(self.applied(request, cell, tenant, name, rehearsed=dry_run(request)))

    @extend_schema(operation_id="cron_jobs_delete", parameters=[DRY_RUN], responses={204: None})
    def delete(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Delete a cron job with its history. Live runs go on."""
        cron_jobs.cron_delete(principal=self.principal, cron_job=self.cron_job(cell, tenant, name))
        return Response(status=204)


class CronPlanView(CronView):
    parser_classes = (BodyParser,)
    rehearses_itself = True

    @extend_schema(operation_id="cron_jobs_plan", request=CronFileSerializer, responses=CronChangeSerializer)
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Return what applying the file would change, or why it would be rejected. Changes nothing."""
        require_tenant(self.principal, Action.JOB_WRITE, tenant, cell)
        try:
            with rehearsal():
                answer = self.applied(request, cell, tenant, name, rehearsed=True)
        except Rejected as problem:
            row = CronJob.objects.filter(cell__name=cell, tenant__name=tenant, name=name).first()
            answer = {"outcome": "refused", "job_revision": cron_jobs.revision_of(row), "sentence": problem.detail}
            answer |= {"next_times": [], "changes": [], "dry_run": True, "problem": problem_document(problem)}
        return Response(answer)


class CronSuspendView(CronView):
    @extend_schema(
        operation_id="cron_jobs_suspend", parameters=[DRY_RUN], request=None, responses=CronJobDetailSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Suspend a cron job: no further run starts. Live runs go on. Idempotent."""
        row = self.cron_job(cell, tenant, name)
        cron_jobs.cron_suspend(principal=self.principal, cron_job=row)
        return self.detail(row)


class CronResumeView(CronView):
    @extend_schema(
        operation_id="cron_jobs_resume", parameters=[DRY_RUN], request=None, responses=CronJobDetailSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Resume a suspended cron job. Due times during the suspension are not caught up. Idempotent."""
        row = self.cron_job(cell, tenant, name)
        cron_jobs.cron_resume(principal=self.principal, cron_job=row)
        return self.detail(row)


class CronRunView(CronView):
    @extend_schema(
        operation_id="cron_jobs_run",
        parameters=[DRY_RUN],
        request=CronRunStartSerializer,
        responses=CronRunNowSerializer,
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Submit a run now, with your permissions. The next due time stays."""
        row, given = self.cron_job(cell, tenant, name), valid(CronRunStartSerializer, request.data)
        result = cron_jobs.cron_run_now(principal=self.principal, cron_job=row, confirm=given["confirm"])
        return Response({"job": result.run.job_name, "dry_run": dry_run(request)})


class CronRunsView(CronView):
    pagination_class = IdPaging

    @extend_schema(operation_id="cron_jobs_runs", responses=CronRunSerializer(many=True))
    def get(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """List the runs that the history of a cron job keeps, oldest first."""
        rows = selectors.history_of(self.cron_job(cell, tenant, name)).order_by("id")
        return paged(self, rows, lambda page: CronRunSerializer(page, many=True).data)
