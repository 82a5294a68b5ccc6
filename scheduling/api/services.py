"""REST views of services: the list, one service with its jobs, its plan, and its verbs."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema, extend_schema_field, inline_serializer
from rest_framework import serializers
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from quota.api.problems import ProblemSerializer
from quota.dry_run import DRY_RUN, dry_run
from quota.paging import MAX_PAGE, PAGE, DescribedPaging
from quota.vocabulary.errors import invalid
from quota.vocabulary.resources import as_mapping
from scheduling.api.base import CellView, valid, whole
from scheduling.api.cell_serializers import ConfirmSerializer
from scheduling.api.change_serializers import ChangeSerializer, change_document, problem_document
from scheduling.api.fields import ServiceStateField
from scheduling.api.job_serializers import JobSerializer
from scheduling.api.list_filters import TENANT
from scheduling.api.service_weights import TrafficSerializer
from scheduling.models import StoppedJob
from scheduling.services import restarts, selectors, service_plans, starts, stops
from scheduling.services.outcomes import Change, ServiceChange
from scheduling.services.weights import traffic_of

_OUTCOMES = {"submit": "submitted", "update": "updated", "none": "unchanged"}


class ServiceRowSerializer(serializers.Serializer[Any]):
    """A service: the jobs of a tenant in a cell with the same label `service`. `stopped`: jobs that a start brings
    back. `tasks_wanted`: tasks of the live jobs that should be up.
    """

    tenant = serializers.CharField()
    name = serializers.CharField()
    state = ServiceStateField()
    jobs = serializers.IntegerField()
    stopped = serializers.IntegerField()
    tasks_wanted = serializers.IntegerField(source="wanted")
    tasks_placed = serializers.IntegerField(source="placed")
    tasks_up = serializers.IntegerField(source="up")


class StoppedJobSerializer(serializers.ModelSerializer[StoppedJob]):
    """A job that a start of its service brings back with this version of its spec."""

    name = serializers.CharField(source="job.name")
    uid = serializers.UUIDField(source="job.uid")
    tasks = serializers.IntegerField(source="job.tasks_total")
    stopped_at = serializers.DateTimeField(source="at")
    stopped_by = serializers.CharField(source="by")

    class Meta:
        model = StoppedJob
        fields = ("name", "uid", "version", "tasks", "stopped_at", "stopped_by")


class ServiceSerializer(serializers.Serializer[Any]):
    """A service with its jobs. `jobs`: the live jobs, problems first. `requested`: how much quota they use, by band."""

    cell = serializers.CharField(source="cell.name")
    tenant = serializers.CharField()
    name = serializers.CharField()
    state = ServiceStateField()
    tasks_wanted = serializers.IntegerField(source="wanted")
    tasks_up = serializers.IntegerField(source="up")
    tasks_pending = serializers.IntegerField(source="pending")
    requested = serializers.SerializerMethodField()
    jobs = serializers.SerializerMethodField()
    stopped = StoppedJobSerializer(many=True)
    traffic = serializers.SerializerMethodField(help_text="How its clients are divided among its tracks.")
    more = serializers.BooleanField(help_text="Whether the service has more live jobs than `jobs` contains.")

    @extend_schema_field(
        {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "integer"}}}
    )
    def get_requested(self, service: selectors.Service) -> dict[str, dict[str, int]]:
        return {band: as_mapping(amounts) for band, amounts in service.requested.items()}

    @extend_schema_field(TrafficSerializer)
    def get_traffic(self, service: selectors.Service) -> Any:
        return TrafficSerializer(traffic_of(service)).data

    @extend_schema_field(JobSerializer(many=True))
    def get_jobs(self, service: selectors.Service) -> Any:
        return JobSerializer(list(service.jobs), many=True, context={"extra": service.cell.extra_resources}).data


class VerbSerializer(serializers.Serializer[Any]):
    jobs = serializers.ListField(
        child=serializers.CharField(max_length=63),
        default=list,
        max_length=selectors.MOST_JOBS,
        help_text="Names of the jobs to change. Default: all jobs of the service.",
    )


class StopSerializer(VerbSerializer, ConfirmSerializer):
    """The body of a stop."""


class JobChangeSerializer(serializers.Serializer[Any]):
    """What a verb has done with one job. `refused`: the job was not changed because of `problem`."""

    job = serializers.CharField()
    change = serializers.ChoiceField([change.value for change in Change])
    tasks = serializers.IntegerField(help_text="Number of tasks that stop, start or restart.")
    detail = serializers.CharField()
    problem = ProblemSerializer(allow_null=True)


ServiceChangeSerializer = inline_serializer(
    "ServiceChange",
    {
        "service": serializers.CharField(help_text="`cell/tenant/service`"),
        "dry_run": serializers.BooleanField(),
        "changed": serializers.IntegerField(help_text="Number of jobs that were changed."),
        "refused": serializers.IntegerField(help_text="Number of jobs that could not be changed."),
        "tasks": serializers.IntegerField(help_text="Number of tasks of the changed jobs that stop, start or restart."),
        "jobs": JobChangeSerializer(many=True),
        "quota": serializers.ListField(
            child=serializers.CharField(), help_text="Sentences about the quota before and after."
        ),
    },
)


class ServicePlanFilesSerializer(serializers.Serializer[Any]):
    files = serializers.ListField(
        child=serializers.DictField(), help_text=f"1 to {service_plans.MOST_FILES} job files of this service."
    )


class ServiceJobPlanSerializer(ChangeSerializer):
    """The plan of one job of a service."""

    name = serializers.CharField(help_text="Name of the job.")


ServicePlanSerializer = inline_serializer(
    "ServicePlan",
    {
        "service": serializers.CharField(help_text="`cell/tenant/service`"),
        "refused": serializers.IntegerField(help_text="Number of jobs that would be rejected."),
        "plans": ServiceJobPlanSerializer(many=True, help_text="The plan of each file, in order."),
        "unnamed": serializers.ListField(
            child=serializers.CharField(), help_text="Live jobs of the service without a file. They stay."
        ),
        "quota": serializers.ListField(
            child=serializers.CharField(), help_text="Sentences about the quota before and after all changes."
        ),
    },
)


class ServicePaging(DescribedPaging, BasePagination):
    """Pages of services in the order of tenant and name. A cursor is the `tenant/name` of the last service before."""

    def read(self, request: Request) -> tuple[int, tuple[str, str]]:
        """Return the number of rows of the page, and the tenant and name behind which it begins."""
        limit, cursor = whole(request, "limit", PAGE, low=1, high=MAX_PAGE), request.query_params.get("cursor", "")
        tenant, slash, name = cursor.partition("/")
        if cursor and not (slash and len(cursor) <= 200 and "\x00" not in cursor):
            raise invalid("cursor", f"{cursor[:50]!r} is not a cursor; use the value of `next` in the answer before")
        return limit, (tenant, name)


class ServicesView(CellView):
    pagination_class = ServicePaging

    @extend_schema(operation_id="services_list", parameters=[TENANT], responses=ServiceRowSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the services that you may see, by tenant and name."""
        limit, after = ServicePaging().read(request)
        tenant = request.query_params.get("tenant", "")
        found = self.cell(cell)
        rows = selectors.services_visible(self.principal, found, tenant=tenant, after=after, most=limit + 1)
        following = None
        if len(rows) > limit:
            last = rows[limit - 1]
            following = replace_query_param(request.build_absolute_uri(), "cursor", f"{last.tenant}/{last.name}")
        shown = ServiceRowSerializer(rows[:limit], many=True).data
        return Response({"next": following, "previous": None, "results": shown})


class ServiceView(CellView):
    @extend_schema(operation_id="services_get", responses=ServiceSerializer)
    def get(self, request: Request, cell: str, tenant: str, service: str) -> Response:
        """Return a service with its live jobs, problems first, and its stopped jobs."""
        found = selectors.service_named(self.principal, self.cell(cell), tenant, service)
        return Response(ServiceSerializer(found).data)


class _VerbView(CellView):
    """A view that changes all jobs of a service, or some of them."""

    rehearses_itself: ClassVar[bool] = True

    def answer(self, done: ServiceChange, rehearsed: bool) -> Response:
        jobs = [
            {
                "job": one.job,
                "change": one.change.value,
                "tasks": one.tasks,
                "detail": one.problem.detail if one.problem else one.detail,
                "problem": problem_document(one.problem),
            }
            for one in done.jobs
        ]
        numbers = {"changed": len(done.changed), "refused": len(done.problems), "tasks": done.tasks}
        return Response(
            {"service": done.service, "dry_run": rehearsed, **numbers, "jobs": jobs, "quota": list(done.quota)}
        )


class ServiceStopView(_VerbView):
    @extend_schema(
        operation_id="services_stop", parameters=[DRY_RUN], request=StopSerializer, responses=ServiceChangeSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, service: str) -> Response:
        """Kill the jobs of a service, and keep their specs, so that a start brings the same versions back. Idempotent.
        If some jobs cannot be changed, the others are.
        """
        given, rehearsed = valid(StopSerializer, request.data), dry_run(request)
        done = stops.service_stop(
            principal=self.principal, cell=self.cell(cell), tenant=tenant, name=service, dry_run=rehearsed, **given
        )
        return self.answer(done, rehearsed)


class ServiceStartView(_VerbView):
    @extend_schema(
        operation_id="services_start", parameters=[DRY_RUN], request=VerbSerializer, responses=ServiceChangeSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, service: str) -> Response:
        """Submit the stopped jobs of a service again, with the versions that they had. They need quota. Idempotent. If
        some jobs are rejected, the others start.
        """
        given, rehearsed = valid(VerbSerializer, request.data), dry_run(request)
        done = starts.service_start(
            principal=self.principal, cell=self.cell(cell), tenant=tenant, name=service, dry_run=rehearsed, **given
        )
        return self.answer(done, rehearsed)


class ServiceRestartView(_VerbView):
    @extend_schema(
        operation_id="services_restart", parameters=[DRY_RUN], request=VerbSerializer, responses=ServiceChangeSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, service: str) -> Response:
        """Restart the running tasks of all jobs of a service, a few tasks of each job at a time."""
        given, rehearsed = valid(VerbSerializer, request.data), dry_run(request)
        done = restarts.service_restart(
            principal=self.principal, cell=self.cell(cell), tenant=tenant, name=service, dry_run=rehearsed, **given
        )
        return self.answer(done, rehearsed)


class ServiceForgetView(CellView):
    @extend_schema(
        operation_id="services_forget",
        parameters=[DRY_RUN],
        request=None,
        responses=inline_serializer(
            "Forgotten",
            {"forgotten": serializers.IntegerField(help_text="Number of jobs that a start no longer brings back.")},
        ),
    )
    def post(self, request: Request, cell: str, tenant: str, service: str) -> Response:
        """Forget the stopped jobs of a service, so that a start no longer brings them back. Live jobs stay."""
        number = stops.service_forget(principal=self.principal, cell=self.cell(cell), tenant=tenant, name=service)
        return Response({"forgotten": number})


class ServicePlanView(CellView):
    rehearses_itself = True

    @extend_schema(operation_id="services_plan", request=ServicePlanFilesSerializer, responses=ServicePlanSerializer)
    def post(self, request: Request, cell: str, tenant: str, service: str) -> Response:
        """Return what these job files would change in the service together. Changes nothing."""
        found = self.cell(cell)
        files = valid(ServicePlanFilesSerializer, request.data)["files"]
        plan = service_plans.service_plan(
            principal=self.principal, cell=found, tenant=tenant, name=service, files=files
        )
        documents = [
            change_document(
                one,
                "refused" if one.problem else _OUTCOMES[one.action],
                rehearsed=True,
                job=None,
                extra=found.extra_resources,
            )
            | {"name": one.name}
            for one in plan.plans
        ]
        return Response(
            {
                "service": f"{cell}/{tenant}/{service}",
                "refused": len(plan.problems),
                "plans": documents,
                "unnamed": list(plan.unnamed),
                "quota": list(plan.quota),
            }
        )
