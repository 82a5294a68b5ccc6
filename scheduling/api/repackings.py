"""REST views of re-packings: plans that move tasks so that machines become free, or a pending task fits."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.paging import IdPaging
from quota.vocabulary.errors import invalid
from scheduling.access import selectors as access
from scheduling.api.base import CellView, valid
from scheduling.models import Cell, Job, Repacking
from scheduling.repacking import repackings, selectors


class MovingJobSerializer(serializers.Serializer[Any]):
    job = serializers.CharField(source="name", help_text="The job, as `tenant/job`.")
    moves = serializers.IntegerField(help_text="Tasks of the job that move.")
    spare = serializers.IntegerField(help_text="Further tasks that move if all spare machines are used.")
    tasks = serializers.IntegerField(help_text="Tasks of the job.")
    may = serializers.IntegerField(help_text="Number of the job's tasks that may be down at once.")
    down = serializers.IntegerField(help_text="Number of the job's tasks that were down at the time of the plan.")


class RepackingSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="pk")
    state = serializers.CharField(
        help_text="`planning`, `planned`, `running`, `done`, `stopped`, `failed` (no plan) or `replaced` (newer plan)."
    )
    detail = serializers.CharField()
    goal = serializers.CharField(help_text="`machines` or `job`.")
    number = serializers.IntegerField(help_text="How many machines should have no task, with goal `machines`.")
    job = serializers.CharField(source="job_name", help_text="The job of which a pending task should fit.")
    reason = serializers.CharField()
    asked_by = serializers.CharField()
    started_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    planned_at = serializers.DateTimeField(allow_null=True)
    planning_s = serializers.FloatField(allow_null=True, help_text="How long the master planned, in seconds.")
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    reached = serializers.BooleanField(help_text="Whether the plan reaches the goal.")
    moves = serializers.IntegerField(help_text="Tasks that move, those inside allocs included.")
    most_moves = serializers.IntegerField()
    at_once = serializers.IntegerField()
    already_free = serializers.IntegerField(help_text="Machines of the plan that have no task now.")
    machines = serializers.IntegerField(help_text="Machines of the plan, without spare ones.")
    spares = serializers.IntegerField(help_text="Spare machines: one is used for each machine that is skipped.")
    freed = serializers.IntegerField(help_text="Machines whose tasks have left.")
    moving = serializers.IntegerField(help_text="Machines whose tasks are leaving.")
    skipped = serializers.IntegerField(help_text="Machines that were skipped.")
    moved = serializers.IntegerField(help_text="Tasks that have left, or are leaving.")


class RepackingDetailSerializer(RepackingSerializer):
    obstacles = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="If the goal cannot be reached: how many machines were left out, by reason.",
    )
    jobs = MovingJobSerializer(many=True, help_text="The jobs that lose tasks, those with the most moves first.")


class RepackingStepSerializer(serializers.Serializer[Any]):
    machine = serializers.CharField(source="machine.hostname")
    state = serializers.CharField(help_text="`spare`, `waiting`, `moving`, `freed` or `skipped`.")
    moves = serializers.IntegerField(help_text="Tasks that leave the machine.")
    detail = serializers.CharField(help_text="Why the step was skipped.")
    began_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


class RepackingPlanSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=300)
    machines = serializers.IntegerField(
        required=False,
        help_text="Number of machines that have no task after the moves. Machines that are free now count too.",
    )
    share = serializers.FloatField(required=False, help_text="The same, as a share of the machines that are up: 0.03.")
    job = serializers.CharField(
        required=False, help_text="A pending task of this job, given as `tenant/job`, fits after the moves."
    )
    most_moves = serializers.IntegerField(
        required=False, help_text="Tasks that may move; 2 % of the running tasks by default."
    )
    job_share = serializers.FloatField(
        default=repackings.JOB_SHARE,
        help_text="Share of the tasks of each job that may move. The number that its disruption budget allows to be"
        " down may always move.",
    )
    most_priority = serializers.IntegerField(
        default=repackings.MOST_PRIORITY, help_text="Tasks of a higher priority stay."
    )
    at_once = serializers.IntegerField(
        default=repackings.AT_ONCE, help_text="Tasks that may be moving at the same time."
    )


class RepackingStartSerializer(serializers.Serializer[Any]):
    confirm = serializers.IntegerField(
        required=False, allow_null=True, help_text="The number of tasks that move; needed if it is very large."
    )


class RepackingReasonSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)


class RepackingsView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="repackings_list", responses=RepackingSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the re-packings of the cell, the oldest first."""
        return self.page(selectors.repackings_of(self.principal, self.cell(cell)), RepackingSerializer)

    @extend_schema(
        operation_id="repackings_plan", request=RepackingPlanSerializer, responses={201: RepackingDetailSerializer}
    )
    def post(self, request: Request, cell: str) -> Response:
        """Ask the master for a plan that moves tasks to other machines, so that machines become free or a pending task
        fits. Nothing moves before the plan is started. The plan is ready when the state is `planned`.
        """
        found = self.cell(cell)
        given = valid(RepackingPlanSerializer, request.data)
        job = _job(self, found, given.pop("job")) if "job" in given else None
        made = repackings.repacking_plan(principal=self.principal, cell=found, job=job, **given)
        return Response(_detail(self, found, made), status=201)


class RepackingView(CellView):
    @extend_schema(operation_id="repackings_retrieve", responses=RepackingDetailSerializer)
    def get(self, request: Request, cell: str, repacking: int) -> Response:
        """Show a re-packing: its plan, the jobs that lose tasks, and its progress."""
        found = selectors.repacking_named(self.principal, self.cell(cell), repacking)
        return Response(RepackingDetailSerializer(found).data)


class RepackingStepsView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="repackings_steps", responses=RepackingStepSerializer(many=True))
    def get(self, request: Request, cell: str, repacking: int) -> Response:
        """List the machines of a re-packing in the order in which their tasks leave, with the state of each."""
        found = selectors.repacking_named(self.principal, self.cell(cell), repacking)
        return self.page(selectors.steps_of(found), RepackingStepSerializer)


class RepackingStartView(CellView):
    @extend_schema(
        operation_id="repackings_start", request=RepackingStartSerializer, responses=RepackingDetailSerializer
    )
    def post(self, request: Request, cell: str, repacking: int) -> Response:
        """Start a planned re-packing. The machines of the plan receive no new tasks, and their tasks leave step by
        step, within the disruption budgets of their jobs.
        """
        found = self.cell(cell)
        given = valid(RepackingStartSerializer, request.data)
        started = repackings.repacking_start(principal=self.principal, cell=found, number=repacking, **given)
        return Response(_detail(self, found, started))


class RepackingStopView(CellView):
    @extend_schema(
        operation_id="repackings_stop", request=RepackingReasonSerializer, responses=RepackingDetailSerializer
    )
    def post(self, request: Request, cell: str, repacking: int) -> Response:
        """Stop a re-packing, or discard its plan. Machines that are not free yet receive tasks again."""
        found = self.cell(cell)
        given = valid(RepackingReasonSerializer, request.data)
        stopped = repackings.repacking_stop(principal=self.principal, cell=found, number=repacking, **given)
        return Response(_detail(self, found, stopped))


class RepackingReleaseView(CellView):
    @extend_schema(
        operation_id="repackings_release", request=RepackingReasonSerializer, responses=RepackingDetailSerializer
    )
    def post(self, request: Request, cell: str, repacking: int) -> Response:
        """Return the free machines of a re-packing that has ended: new tasks may start there."""
        found = self.cell(cell)
        given = valid(RepackingReasonSerializer, request.data)
        released = repackings.repacking_release(principal=self.principal, cell=found, number=repacking, **given)
        return Response(_detail(self, found, released))


def _detail(view: CellView, cell: Cell, row: Repacking) -> Any:
    return RepackingDetailSerializer(selectors.repacking_named(view.principal, cell, row.pk)).data


def _job(view: CellView, cell: Cell, name: str) -> Job:
    tenant, slash, job = name.partition("/")
    if not (tenant and slash and job):
        raise invalid("job", f"job is {name!r}; give the tenant and the job, such as search/index")
    return access.job_named(view.principal, cell, tenant, job)
