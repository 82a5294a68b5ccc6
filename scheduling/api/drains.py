"""REST views that start a drain of many machines, and show the progress of each drain."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.paging import IdPaging, paged
from scheduling.api.base import CellView, valid
from scheduling.api.cell_serializers import DrainSerializer
from scheduling.api.machine_choice import MachineChoiceSerializer, machines_chosen
from scheduling.machines import drain_progress
from scheduling.machines.machines import machines_drain
from scheduling.models import Drain


class DisruptionRateSerializer(serializers.Serializer[Any]):
    most = serializers.IntegerField(help_text="Number of disruptions that the job allows within the window.")
    window_s = serializers.FloatField(help_text="Length of the window in seconds. It ends now.")
    counted = serializers.IntegerField(help_text="Number of disruptions within the window.")
    left = serializers.IntegerField(help_text="Number of further disruptions that are possible now.")
    next_at = serializers.DateTimeField(
        allow_null=True, help_text="When the next disruption is possible. Null if one is possible now."
    )


class WaitingSerializer(serializers.Serializer[Any]):
    job = serializers.CharField(help_text="The job, as `tenant/job`. Its disruption budget is used up.")
    tasks = serializers.IntegerField(help_text="Tasks of this job on the machine that wait for the budget.")
    may = serializers.IntegerField(help_text="Number of the job's tasks that may be down at once.")
    down = serializers.IntegerField(help_text="Number of the job's tasks that are down now.")
    rate = DisruptionRateSerializer(
        allow_null=True,
        help_text="Disruptions of the job within a window of time. Null if the job has no such limit, or is hidden.",
    )
    needs = serializers.IntegerField(help_text="Number of the job's tasks that leave together, in one alloc.")


class DrainProgressSerializer(serializers.Serializer[Any]):
    machine = serializers.CharField(source="hostname")
    state = serializers.CharField(source="drain.machine.state")
    reason = serializers.CharField(source="drain.reason")
    asked_by = serializers.CharField(source="drain.asked_by")
    began_at = serializers.DateTimeField(source="drain.began_at")
    deadline = serializers.DateTimeField(source="drain.deadline", allow_null=True)
    break_budgets = serializers.BooleanField(
        source="drain.break_budgets",
        help_text="After the deadline, the remaining tasks are evicted even if this exceeds disruption budgets.",
    )
    overdue = serializers.BooleanField()
    done = serializers.BooleanField(help_text="True when the machine is empty.")
    tasks_at_beginning = serializers.IntegerField(source="drain.tasks")
    tasks_left = serializers.IntegerField(source="left")
    tasks_leaving = serializers.IntegerField(
        source="leaving", help_text="The tasks of `tasks_left` that are evicted next, at the cell's rate."
    )
    tasks_staying = serializers.IntegerField(
        source="staying",
        help_text="The tasks of `tasks_left` that a re-packing keeps on the machine or moves only in a later step, or"
        " that end by their time limits before a maintenance window starts.",
    )
    tasks_stopping = serializers.IntegerField(
        source="stopping", help_text="Evicted tasks whose processes have not ended yet. `tasks_left` excludes them."
    )
    waiting = WaitingSerializer(
        many=True, help_text="Tasks of `tasks_left` that wait for a disruption budget, per job."
    )


class DrainManySerializer(MachineChoiceSerializer, DrainSerializer):
    pass


class DrainsView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="drains_list", responses=DrainProgressSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the machines that are being drained. For each machine, show the remaining tasks, and the disruption
        budgets for which the drain waits.
        """
        found = self.cell(cell)

        def shown(rows: list[Drain]) -> Any:
            progress = drain_progress.progress_of(self.principal, found, rows)
            return DrainProgressSerializer(progress, many=True).data

        return paged(self, drain_progress.drains_of(found), shown)


class MachinesDrainView(CellView):
    @extend_schema(
        operation_id="machines_drain_many", request=DrainManySerializer, responses=DrainProgressSerializer(many=True)
    )
    def post(self, request: Request, cell: str) -> Response:
        """Drain several machines, chosen by name, rack, power domain or a selector. Either all of them drain or none
        does.
        """
        found = self.cell(cell)
        given = valid(DrainManySerializer, request.data)
        rows = machines_chosen(found, given)
        machines_drain(principal=self.principal, cell=found, machines=rows, **given)
        shown = drain_progress.progress_of(
            self.principal, found, list(drain_progress.drains_of(found).filter(machine__in=rows))
        )
        return Response(DrainProgressSerializer(shown, many=True).data)
