"""REST views of templates: apply, list, delete, and dispatch. The URL of a dispatch also serves as a webhook."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.api.problems import ProblemSerializer
from quota.dry_run import DRY_RUN, dry_run, rehearsal
from quota.paging import IdPaging, paged
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.api.base import BodyParser, CellView, valid, whole
from scheduling.api.change_serializers import OUTCOMES, problem_document
from scheduling.api.fields import JobHealthField, LifeField
from scheduling.api.job_serializers import JobSerializer
from scheduling.api.preconditions import IF_REVISION, KEY, idempotency_key, if_revision
from scheduling.job_templates import dispatch_tokens, selectors, template_spec, templates
from scheduling.models import JobTemplate, JobTemplateVersion
from scheduling.spec.merge_patch import format_changes

_VERSION = OpenApiParameter("version", OpenApiTypes.INT, description="An earlier version. Default: the newest one.")
_OF_DISPATCHED = (
    *("name", "uid", "state", "health", "outcome", "tasks_total", "tasks_up", "tasks_pending", "tasks_dead"),
    *("created_at", "ended_at"),
)
_FILTERS = [
    OpenApiParameter("tenant", OpenApiTypes.STR, description="Return only templates of this tenant."),
    OpenApiParameter("selector", OpenApiTypes.STR, description="Return only templates whose labels match."),
]


class TemplateFileSerializer(serializers.Serializer[Any]):
    """A job file of kind `Template`."""

    apiVersion = serializers.CharField(default="borg/v1")  # noqa: N815 - the file's own spelling
    kind = serializers.ChoiceField([template_spec.KIND])
    name = serializers.CharField(max_length=template_spec.MAX_NAME)
    tenant = serializers.CharField(required=False)
    cell = serializers.CharField(required=False)
    labels = serializers.DictField(
        child=serializers.CharField(), required=False, help_text="Labels of the template, not of its jobs."
    )
    description = serializers.CharField(required=False)
    parameters = serializers.DictField(required=False, help_text="A JSON Schema whose properties are scalars.")
    job = serializers.DictField(help_text="A job file without name, tenant and cell, with $(param.NAME) in its texts.")


class TemplateSerializer(serializers.ModelSerializer[JobTemplate]):
    cell = serializers.CharField(source="cell.name")
    tenant = serializers.CharField(source="tenant.name")
    labels = serializers.DictField(child=serializers.CharField())
    job_revision = serializers.SerializerMethodField(help_text="For `If-Match`.")

    class Meta:
        model = JobTemplate
        fields = (
            *("uid", "cell", "tenant", "name", "labels", "description", "version", "job_revision", "changed_by"),
            *("created_at", "changed_at"),
        )

    def get_job_revision(self, row: JobTemplate) -> str:
        return templates.revision_of(row)


class TemplateVersionSerializer(serializers.ModelSerializer[JobTemplateVersion]):
    class Meta:
        model = JobTemplateVersion
        fields = ("version", "actor", "created_at")


class TemplateDetailSerializer(TemplateSerializer):
    parameters = serializers.DictField(source="shown.parameters", help_text="A JSON Schema.")
    job = serializers.DictField(source="shown.job", help_text="The job of a dispatch, with $(param.NAME).")
    versions = TemplateVersionSerializer(many=True, help_text="The newest versions.")

    class Meta(TemplateSerializer.Meta):
        fields = (*TemplateSerializer.Meta.fields, "parameters", "job", "versions")  # type: ignore[assignment]


TemplateChangeSerializer = inline_serializer(
    "TemplateChange",
    {
        "outcome": serializers.ChoiceField(OUTCOMES),
        "version": serializers.IntegerField(),
        "job_revision": serializers.CharField(help_text="Revision after the change, for `If-Match`."),
        "dry_run": serializers.BooleanField(),
    },
)

TemplatePlanSerializer = inline_serializer(
    "TemplatePlan",
    {
        "outcome": serializers.ChoiceField(OUTCOMES),
        "job_revision": serializers.CharField(help_text="Revision before the change, for `If-Match`."),
        "sentence": serializers.CharField(),
        "changes": serializers.ListField(
            child=serializers.CharField(), help_text="A line for each field that a change of the template changes."
        ),
        "problem": ProblemSerializer(allow_null=True),
    },
)


class DispatchSerializer(serializers.Serializer[Any]):
    parameters = serializers.DictField(default=dict, help_text="The arguments by name.")
    suffix = serializers.CharField(
        default="", allow_blank=True, help_text="End of the job's name. Default: the next number."
    )


DispatchedSerializer = inline_serializer(
    "Dispatched",
    {
        "job": serializers.CharField(help_text="Name of the job."),
        "uid": serializers.UUIDField(allow_null=True, help_text="UID of the job; null in a dry run."),
        "outcome": serializers.ChoiceField(OUTCOMES),
        "dry_run": serializers.BooleanField(),
    },
)


class TemplatesView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="templates_list", parameters=_FILTERS, responses=TemplateSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the templates that you may see."""
        tenant, selector = request.query_params.get("tenant", ""), request.query_params.get("selector", "")
        rows = selectors.templates_visible(self.principal, self.cell(cell), tenant=tenant, selector=selector)
        return paged(self, rows, lambda page: TemplateSerializer(page, many=True).data)


class _FileView(CellView):
    parser_classes = (BodyParser,)

    def template(self, cell: str, tenant: str, name: str) -> JobTemplate:
        return selectors.template_named(self.principal, self.cell(cell), tenant, name)

    def applied(self, request: Request, cell: str, tenant: str, name: str) -> templates.TemplateChange:
        found, file = self.cell(cell), request.data
        spec = templates.template_spec_for(
            principal=self.principal,
            cell=found,
            file=file,  # type: ignore[arg-type]
            tenant=tenant,
            name=name,
        )
        return templates.template_apply(
            principal=self.principal, cell=found, spec=spec, if_revision=if_revision(request)
        )


class TemplateView(_FileView):
    @extend_schema(operation_id="templates_get", parameters=[_VERSION], responses=TemplateDetailSerializer)
    def get(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Return a template with its parameters, its job and its newest versions."""
        row = self.template(cell, tenant, name)
        if "version" in request.query_params:
            row = selectors.at_version(row, whole(request, "version", 1, low=1, high=2**31 - 1))
        row.shown = selectors.content_shown(self.principal, row)  # type: ignore[attr-defined]
        return Response(TemplateDetailSerializer(row).data)

    @extend_schema(
        operation_id="templates_apply",
        parameters=[DRY_RUN, IF_REVISION],
        request=TemplateFileSerializer,
        responses=TemplateChangeSerializer,
    )
    def put(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Create or change a template. Idempotent."""
        done = self.applied(request, cell, tenant, name)
        row = done.template
        answer = {"outcome": done.outcome, "version": row.version, "job_revision": templates.revision_of(row)}
        return Response(answer | {"dry_run": dry_run(request)})

    @extend_schema(operation_id="templates_delete", parameters=[DRY_RUN], responses={204: None})
    def delete(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Delete a template with its versions. The jobs that were submitted from it stay."""
        templates.template_delete(principal=self.principal, template=self.template(cell, tenant, name))
        return Response(status=204)


class TemplatePlanView(_FileView):
    rehearses_itself = True

    @extend_schema(operation_id="templates_plan", request=TemplateFileSerializer, responses=TemplatePlanSerializer)
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Return what applying the file would change, or why it would be rejected. Changes nothing."""
        require_tenant(self.principal, Action.JOB_WRITE, tenant, cell)
        before = JobTemplate.objects.filter(cell__name=cell, tenant__name=tenant, name=name).first()
        answer: dict[str, Any] = {"job_revision": templates.revision_of(before), "changes": [], "problem": None}
        try:
            with rehearsal():
                done = self.applied(request, cell, tenant, name)
        except Rejected as problem:
            answer |= {"outcome": "refused", "sentence": problem.detail, "problem": problem_document(problem)}
            return Response(answer)
        if before is not None:
            answer["changes"] = format_changes(
                selectors.content_masked(before.content), selectors.content_masked(done.template.content)
            )
        words = {"submitted": "is new", "updated": "changes", "unchanged": "already has this content"}
        return Response(answer | {"outcome": done.outcome, "sentence": f"Template {name} {words[done.outcome]}."})


DispatchedJobSerializer = inline_serializer(
    "DispatchedJob",
    {
        "name": serializers.CharField(),
        "uid": serializers.UUIDField(),
        "state": LifeField(),
        "health": JobHealthField(),
        "outcome": serializers.CharField(help_text="How the job has ended; empty as long as it is live."),
        "tasks_total": serializers.IntegerField(),
        "tasks_up": serializers.IntegerField(help_text="Tasks that run and whose health check passes."),
        "tasks_pending": serializers.IntegerField(),
        "tasks_dead": serializers.IntegerField(),
        "created_at": serializers.DateTimeField(),
        "ended_at": serializers.DateTimeField(allow_null=True),
    },
)


class _DispatchView(CellView):
    """A view that tokens with the scope `dispatch` may use for their templates."""

    for_dispatch_tokens = True

    @cached_property
    def principal(self) -> Principal:
        """Return the caller. A token with the scope `dispatch` may act only on its templates."""
        path = self.kwargs
        return dispatch_tokens.caller(super().principal, path["cell"], path["tenant"], path["name"])


class DispatchedJobView(_DispatchView):
    @extend_schema(operation_id="templates_dispatched", responses=DispatchedJobSerializer)
    def get(self, request: Request, cell: str, tenant: str, name: str, job: str) -> Response:
        """Return the state of a job that was dispatched from this template. A token with the scope `dispatch` can read
        only the jobs that it has dispatched itself.
        """
        principal = self.principal
        found = self.job(cell, tenant, job)
        dispatch_tokens.check_dispatched(principal, found, name)
        shown = JobSerializer(found, context={"extra": found.cell.extra_resources}).data
        return Response({field: shown[field] for field in _OF_DISPATCHED})


class DispatchView(_DispatchView):
    rehearses_itself = True

    @extend_schema(
        operation_id="templates_dispatch",
        parameters=[DRY_RUN, KEY, IF_REVISION],
        request=DispatchSerializer,
        responses={200: DispatchedSerializer, 201: DispatchedSerializer},
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Submit a job from a template with arguments. The job has your permissions. Other systems can use this URL as
        a webhook, with a token that may only dispatch (`dispatch-tokens/`).
        """
        principal = self.principal
        row = selectors.template_named(principal, self.cell(cell), tenant, name)
        given, rehearsed = valid(DispatchSerializer, request.data), dry_run(request)
        if given["suffix"] and dispatch_tokens.only_dispatches(principal):
            raise invalid(
                "suffix", "a token that may only dispatch cannot choose the name of the job; leave suffix out"
            )
        done = templates.template_dispatch(
            principal=principal,
            template=row,
            given=given["parameters"],
            suffix=given["suffix"],
            key=idempotency_key(request),
            if_revision=if_revision(request),
            dry_run=rehearsed,
        )
        uid = done.job.uid if done.job is not None and not rehearsed else None
        answer = {"job": done.name, "uid": uid, "outcome": done.outcome, "dry_run": rehearsed}
        return Response(answer, status=201 if done.outcome == "submitted" and not rehearsed else 200)
