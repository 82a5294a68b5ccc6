"""REST views of workflows: submit, list, nodes, pause, resume, cancel, retry, and the results of nodes."""

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
from scheduling.api.base import BodyParser, CellView, flag, valid
from scheduling.api.change_serializers import problem_document
from scheduling.api.preconditions import KEY, idempotency_key
from scheduling.models import Workflow, WorkflowNode
from scheduling.workflows import results, retrying, selectors, workflow_spec, workflows
from scheduling.workflows.graph_rules import NodeState

_FILTERS = [
    OpenApiParameter("tenant", OpenApiTypes.STR, description="Return only workflows of this tenant."),
    OpenApiParameter("state", OpenApiTypes.STR, description="Return only workflows in this state, or `live` ones."),
    OpenApiParameter("selector", OpenApiTypes.STR, description="Return only workflows whose labels match."),
]
_IF_CHANGED = OpenApiParameter(
    "if_changed",
    OpenApiTypes.BOOL,
    description="If true, the file is compared with that of the last submission that had the same name and"
    " `if_changed`. If the files are equal, nothing is submitted, even if the workflow has ended.",
)


class WorkflowFileSerializer(serializers.Serializer[Any]):
    """A job file of kind `Workflow`."""

    apiVersion = serializers.CharField(default="borg/v1")  # noqa: N815 - the file's own spelling
    kind = serializers.ChoiceField([workflow_spec.KIND])
    name = serializers.CharField(max_length=63)
    tenant = serializers.CharField(required=False)
    cell = serializers.CharField(required=False)
    labels = serializers.DictField(child=serializers.CharField(), required=False)
    parameters = serializers.DictField(
        required=False, help_text="Environment variables of all tasks: text, numbers, true or false."
    )
    parallel = serializers.IntegerField(default=1_000, help_text="How many jobs are live at once at most.")
    keep_s = serializers.FloatField(default=604_800.0, help_text="How long to keep the ended workflow, in seconds.")
    nodes = serializers.DictField(
        help_text="By name: `job` (a job file without name, tenant and cell), `after`, `when`, `retries`, `for_each`."
    )


class WorkflowSerializer(serializers.ModelSerializer[Workflow]):
    cell = serializers.CharField(source="cell.name")
    tenant = serializers.CharField(source="tenant.name")
    labels = serializers.DictField(child=serializers.CharField())
    owner = serializers.CharField(source="owner_name", help_text="The user with whose permissions jobs are submitted.")
    state = serializers.ChoiceField(Workflow.STATES)

    class Meta:
        model = Workflow
        fields = (
            *("uid", "cell", "tenant", "name", "labels", "state", "detail", "parallel", "keep_s", "nodes"),
            *("nodes_left", "nodes_failed", "live", "owner", "created_at", "changed_at", "ended_at"),
        )


class WorkflowDetailSerializer(WorkflowSerializer):
    node_states = serializers.SerializerMethodField(help_text="How many nodes and branches are in each state.")
    parameters = serializers.SerializerMethodField(help_text="Environment variables of all tasks.")

    class Meta(WorkflowSerializer.Meta):
        fields = (*WorkflowSerializer.Meta.fields, "node_states", "parameters")  # type: ignore[assignment]

    @extend_schema_field(serializers.DictField(child=serializers.IntegerField()))
    def get_node_states(self, row: Workflow) -> dict[str, int]:
        return selectors.state_counts([row])[row.pk]

    @extend_schema_field(serializers.DictField(child=serializers.CharField()))
    def get_parameters(self, row: Workflow) -> dict[str, str]:
        return selectors.parameters_shown(self.context["principal"], row)


class WorkflowNodeSerializer(serializers.ModelSerializer[WorkflowNode]):
    branch = serializers.SerializerMethodField(help_text="Place of the item; null for the node itself.")
    state = serializers.ChoiceField([state.value for state in NodeState])
    after = serializers.DictField(
        child=serializers.CharField(),
        help_text="Earlier nodes for which this node waits, and how each of them must end.",
    )
    item = serializers.JSONField(help_text="The item of a branch.")
    result = serializers.JSONField(help_text="The value that a task of the node has set.")

    class Meta:
        model = WorkflowNode
        fields = (
            *("name", "branch", "layer", "after", "state", "attempt", "retries", "job_name", "item", "result"),
            *("code", "detail", "started_at", "ended_at"),
        )

    def get_branch(self, row: WorkflowNode) -> int | None:
        return None if row.branch < 0 else row.branch


class WorkflowCancelSerializer(serializers.Serializer[Any]):
    confirm = serializers.IntegerField(
        min_value=0, default=None, allow_null=True, help_text="How many running tasks may stop."
    )


WorkflowChangeSerializer = inline_serializer(
    "WorkflowChange",
    {
        "outcome": serializers.ChoiceField(["submitted", "unchanged", "refused"]),
        "sentence": serializers.CharField(),
        "nodes": serializers.IntegerField(),
        "dry_run": serializers.BooleanField(),
        "problem": ProblemSerializer(allow_null=True),
    },
)


class _View(CellView):
    def workflow(self, cell: str, tenant: str, name: str) -> Workflow:
        return selectors.workflow_named(self.principal, self.cell(cell), tenant, name)

    def detail(self, row: Workflow) -> Response:
        return Response(WorkflowDetailSerializer(row, context={"principal": self.principal}).data)

    def submitted(self, request: Request, cell: str, tenant: str, name: str, *, rehearsed: bool) -> dict[str, Any]:
        found = self.cell(cell)
        file: Any = request.data
        spec = workflows.workflow_spec_for(principal=self.principal, cell=found, file=file, tenant=tenant, name=name)
        key = "" if rehearsed else idempotency_key(request)
        once = flag(request, "if_changed")
        done = workflows.workflow_submit(principal=self.principal, cell=found, spec=spec, key=key, if_changed=once)
        number, jobs = len(spec.nodes), sum(node.jobs for node in spec.nodes.values())
        counted = f"{number:,} node{'s' * (number != 1)} with at most {jobs:,} job{'s' * (jobs != 1)}"
        words = {"submitted": f"is new: {counted}", "unchanged": "is live already with this spec"}
        if done.workflow is None:
            words["unchanged"] = "has run already with this file, and does not run again"
        return {
            "outcome": done.outcome,
            "sentence": f"Workflow {spec.name} {words[done.outcome]}.",
            "nodes": number,
            "dry_run": rehearsed,
            "problem": None,
        }


class WorkflowsView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="workflows_list", parameters=_FILTERS, responses=WorkflowSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the workflows that you may see, with those that have ended."""
        given = {name: request.query_params.get(name, "") for name in ("tenant", "state", "selector")}
        rows = selectors.workflows_visible(self.principal, self.cell(cell), **given)
        return paged(self, rows, lambda page: WorkflowSerializer(page, many=True).data)


class WorkflowView(_View):
    parser_classes = (BodyParser,)

    @extend_schema(operation_id="workflows_get", responses=WorkflowDetailSerializer)
    def get(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Return the live workflow of this name, or else the one that ended last."""
        return self.detail(self.workflow(cell, tenant, name))

    @extend_schema(
        operation_id="workflows_submit",
        parameters=[DRY_RUN, KEY, _IF_CHANGED],
        request=WorkflowFileSerializer,
        responses=WorkflowChangeSerializer,
    )
    def put(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Submit a workflow. You become its owner: its jobs have your permissions.

        If an equal workflow of this name is live, nothing changes. If a different one is live, the answer is 409. A
        repeated request with the same `Idempotency-Key` creates no second workflow, also if the first one has ended.
        """
        return Response(self.submitted(request, cell, tenant, name, rehearsed=dry_run(request)))


class WorkflowPlanView(_View):
    parser_classes = (BodyParser,)
    rehearses_itself = True

    @extend_schema(
        operation_id="workflows_plan",
        parameters=[_IF_CHANGED],
        request=WorkflowFileSerializer,
        responses=WorkflowChangeSerializer,
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Return what submitting the file would do, or why it would be rejected. Changes nothing."""
        require_tenant(self.principal, Action.JOB_WRITE, tenant, cell)
        try:
            with rehearsal():
                answer = self.submitted(request, cell, tenant, name, rehearsed=True)
        except Rejected as problem:
            answer = {"outcome": "refused", "sentence": problem.detail, "nodes": 0, "dry_run": True}
            answer |= {"problem": problem_document(problem)}
        return Response(answer)


class WorkflowNodesView(_View):
    pagination_class = IdPaging

    @extend_schema(operation_id="workflows_nodes", responses=WorkflowNodeSerializer(many=True))
    def get(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """List the nodes of a workflow, and the branches of nodes with `for_each`, with their states and results."""
        rows = selectors.nodes_of(self.workflow(cell, tenant, name))
        return paged(self, rows, lambda page: WorkflowNodeSerializer(page, many=True).data)


class WorkflowFileView(_View):
    @extend_schema(operation_id="workflows_file", responses=WorkflowFileSerializer)
    def get(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Return the workflow as a job file. Values that look secret are masked if you may not change it."""
        return Response(selectors.file_shown(self.principal, self.workflow(cell, tenant, name)))


class WorkflowPauseView(_View):
    @extend_schema(
        operation_id="workflows_pause", parameters=[DRY_RUN], request=None, responses=WorkflowDetailSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Pause a workflow: no further job is submitted. Live jobs go on. Idempotent."""
        row = self.workflow(cell, tenant, name)
        return self.detail(workflows.workflow_pause(principal=self.principal, workflow=row))


class WorkflowResumeView(_View):
    @extend_schema(
        operation_id="workflows_resume", parameters=[DRY_RUN], request=None, responses=WorkflowDetailSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Resume a paused workflow. Idempotent."""
        row = self.workflow(cell, tenant, name)
        return self.detail(workflows.workflow_resume(principal=self.principal, workflow=row))


class WorkflowCancelView(_View):
    @extend_schema(
        operation_id="workflows_cancel",
        parameters=[DRY_RUN],
        request=WorkflowCancelSerializer,
        responses=WorkflowDetailSerializer,
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Cancel a workflow: no further job is submitted, and live jobs are killed. Idempotent."""
        row, given = self.workflow(cell, tenant, name), valid(WorkflowCancelSerializer, request.data)
        return self.detail(workflows.workflow_cancel(principal=self.principal, workflow=row, confirm=given["confirm"]))


class WorkflowRetryView(_View):
    @extend_schema(
        operation_id="workflows_retry", parameters=[DRY_RUN], request=None, responses=WorkflowDetailSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Run a failed or cancelled workflow again from its failed nodes. You become its owner. Nodes that succeeded
        are not run again.
        """
        row = self.workflow(cell, tenant, name)
        return self.detail(retrying.workflow_retry(principal=self.principal, workflow=row))


class ResultView(CellView):
    parser_classes = (BodyParser,)

    @extend_schema(operation_id="jobs_result", parameters=[DRY_RUN], request=OpenApiTypes.ANY, responses={204: None})
    def put(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Set the result of the workflow node whose live job this is: JSON with at most 4 KiB. Only a task of the job
        may send this, with its identity. Later nodes get the result as an environment variable.
        """
        body: Any = request.data
        value = results.result_read(body)
        results.result_set(principal=self.principal, cell=self.cell(cell), tenant=tenant, job=job, value=value)
        return Response(status=204)
