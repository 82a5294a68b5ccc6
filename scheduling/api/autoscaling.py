"""REST views of the autoscaler: the recommendation for a job, its acceptance, and simulations."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.dry_run import DRY_RUN, dry_run
from quota.vocabulary.permissions import Action
from scheduling.access.tenant_permission import require_tenant
from scheduling.api.base import CellView, valid
from scheduling.api.change_serializers import ChangeSerializer, change_response
from scheduling.api.preconditions import IF_REVISION, if_revision
from scheduling.api.suggested_limits import FitSerializer, fit_document
from scheduling.autoscaling.accepting import accepted_spec, recommendation_accept
from scheduling.autoscaling.selectors import Recommendation, if_future, recommendation_of
from scheduling.autoscaling.simulation import simulate
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs import plans
from scheduling.jobs.actions.autoscaled import with_values
from scheduling.jobs.fit_guidance import guidance
from scheduling.jobs.updates import spec_of
from scheduling.models import Job


class ScaledValuesSerializer(serializers.Serializer[Any]):
    tasks = serializers.IntegerField()
    cpu = serializers.IntegerField(help_text="Limit of a task, in milli-cores.")
    ram = serializers.IntegerField(help_text="Limit of a task, in bytes.")


class ScalingChangeSerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField()
    at = serializers.DateTimeField()
    before = ScaledValuesSerializer(allow_null=True)
    after = ScaledValuesSerializer()


class RejectedChangeSerializer(serializers.Serializer[Any]):
    of = serializers.ChoiceField(["tasks", "limits"], help_text="What would change: their number, or their limits.")
    code = serializers.CharField()
    detail = serializers.CharField(help_text="Why the last change was rejected.")
    since = serializers.DateTimeField(help_text="Since when changes are rejected.")
    retry_at = serializers.DateTimeField(allow_null=True, help_text="The next attempt; null: in the next turn.")


class AutoscalingSerializer(serializers.Serializer[Any]):
    """What the autoscaler knows about a job. All amounts of money are micro-credits per 30 days at the list price."""

    vertical = serializers.CharField(help_text="Mode of the limits: `off`, `recommend` or `auto`.")
    horizontal = serializers.CharField(help_text="Mode of the number of tasks: `off`, `recommend` or `auto`.")
    now = ScaledValuesSerializer(help_text="The present values.")
    wanted = ScaledValuesSerializer(help_text="The recommended values.")
    available = serializers.BooleanField(help_text="Whether they differ enough to be worth a change.")
    saves_per_month = serializers.IntegerField(help_text="Negative if the recommended values cost more.")
    needed = serializers.FloatField(
        allow_null=True, help_text="How many tasks are needed to bring the load of each task to its target."
    )
    usage_since = serializers.DateTimeField(allow_null=True, help_text="Since when there is measured use.")
    out_of_memory_at = serializers.DateTimeField(allow_null=True, help_text="When a task ran out of memory last.")
    tasks_held_until = serializers.DateTimeField(
        allow_null=True, help_text="The number of tasks stays until then, because another update has changed it."
    )
    limits_held_until = serializers.DateTimeField(
        allow_null=True, help_text="The limits stay until then, because another update has changed them."
    )
    needed_at = serializers.DateTimeField(allow_null=True, help_text="When the load was measured last.")
    rejections = RejectedChangeSerializer(many=True, help_text="Changes that are rejected now.")
    changes = ScalingChangeSerializer(many=True, help_text="The newest versions by the autoscaler.")
    guidance = FitSerializer(many=True, help_text="How many tasks with the recommended values fit the cell.")


class AutoscalingView(CellView):
    @extend_schema(operation_id="jobs_autoscaling", responses=AutoscalingSerializer)
    def get(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Return the limits and the number of tasks that the autoscaler recommends for the job, what they would save,
        and its last changes.
        """
        found = self.job(cell, tenant, job)
        return Response(AutoscalingSerializer(document(found, recommendation_of(found))).data)


def document(job: Job, found: Recommendation) -> dict[str, Any]:
    row, rules = found.row, found.rules
    fits = []
    if found.available and job.state != JobState.DEAD:
        fits = guidance(job.cell, with_values(spec_of(job), found.wanted, job.cell))
    return {
        "vertical": rules.vertical.mode if rules.vertical is not None else "off",
        "horizontal": rules.horizontal.mode if rules.horizontal is not None else "off",
        "now": found.now._asdict(),
        "wanted": found.wanted._asdict(),
        "available": found.available,
        "saves_per_month": found.saves,
        "needed": None if row is None else row.needed,
        "usage_since": None if row is None else row.first_at,
        "out_of_memory_at": None if row is None else row.oom_at,
        "tasks_held_until": None if row is None else if_future(row.tasks_held_until),
        "limits_held_until": None if row is None else if_future(row.limits_held_until),
        "needed_at": None if row is None else row.needed_at,
        "rejections": [asdict(one) for one in found.rejections],
        "changes": found.changes,
        "guidance": [fit_document(fit, extra=job.cell.extra_resources) for fit in fits],
    }


class AcceptView(CellView):
    rehearses_itself = True

    @extend_schema(
        operation_id="jobs_autoscaling_accept",
        parameters=[DRY_RUN, IF_REVISION],
        request=None,
        responses=ChangeSerializer,
    )
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Set the recommended limits and number of tasks. This is an ordinary update of the job."""
        found, rehearsed = self.job(cell, tenant, job), dry_run(request)
        require_tenant(self.principal, Action.JOB_WRITE, tenant, cell)
        job_spec = accepted_spec(found)
        plan = plans.plan_between(found, job_spec)
        done = recommendation_accept(
            principal=self.principal, job=found, job_spec=job_spec, dry_run=rehearsed, if_revision=if_revision(request)
        )
        return change_response(found.cell, job_spec, plan, done.outcome, rehearsed, job=done.job)


class SimulationRequestSerializer(serializers.Serializer[Any]):
    autoscale = serializers.DictField(
        default=None,
        allow_null=True,
        help_text="The content of `autoscale` in a job file. Default: that of the job. If it has none, only limits are"
        " simulated.",
    )


def _pair(name: str, field: type[serializers.Field[Any, Any, Any, Any]]) -> serializers.Serializer[Any]:
    return inline_serializer(name, {"cpu": field(), "ram": field()})


class VerticalSimulationSerializer(serializers.Serializer[Any]):
    """`limits`, `limits_at_end`: of a task, in milli-cores and bytes. `slack`, `slack_after`: the part of the limits
    that was not used, as it was and with the autoscaler.
    """

    history_s = serializers.FloatField(help_text="Seconds of the record that came before the first change.")
    limits = _pair("SimulatedLimits", serializers.IntegerField)
    limits_at_end = _pair("SimulatedLimitsAtEnd", serializers.IntegerField)
    slack = _pair("SimulatedSlack", serializers.FloatField)
    slack_after = _pair("SimulatedSlackAfter", serializers.FloatField)
    task_days = serializers.IntegerField(help_text="Days of tasks in the record, counted per task and day.")
    oom_task_days = serializers.IntegerField(
        help_text="Those of `task_days` on which the task would have run out of memory."
    )
    throttled = serializers.FloatField(help_text="Share of the windows in which a task used more CPU than its limit.")
    changes_total = serializers.IntegerField()
    changes = inline_serializer(
        "SimulatedLimitChange",
        {"at": serializers.DateTimeField(), "cpu": serializers.IntegerField(), "ram": serializers.IntegerField()},
        many=True,
    )
    saves_per_month = serializers.IntegerField()


class HorizontalSimulationSerializer(serializers.Serializer[Any]):
    tasks = serializers.FloatField(help_text="Mean number of tasks in the record.")
    tasks_after = serializers.FloatField(help_text="Mean number of tasks with the autoscaler.")
    least = serializers.IntegerField()
    most = serializers.IntegerField()
    beyond = serializers.FloatField(help_text="Share of the windows in which the load needed more tasks.")
    metric_left_out = serializers.BooleanField(
        help_text="Whether the simulation ignored the metric in `autoscale`, because metrics of tasks are not recorded."
    )
    changes_total = serializers.IntegerField()
    changes = inline_serializer(
        "SimulatedTasksChange", {"at": serializers.DateTimeField(), "tasks": serializers.IntegerField()}, many=True
    )
    saves_per_month = serializers.IntegerField()


class SimulationSerializer(serializers.Serializer[Any]):
    begins_at = serializers.DateTimeField(help_text="Start of the recorded usage.")
    ends_at = serializers.DateTimeField()
    vertical = VerticalSimulationSerializer(allow_null=True)
    horizontal = HorizontalSimulationSerializer(allow_null=True)


class SimulateView(CellView):
    rehearses_itself = True  # it changes nothing

    @extend_schema(
        operation_id="jobs_autoscaling_simulate", request=SimulationRequestSerializer, responses=SimulationSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, job: str) -> Response:
        """Return what the autoscaler would have done to the job on its recorded usage. Changes nothing."""
        found = self.job(cell, tenant, job)
        rules = valid(SimulationRequestSerializer, request.data)["autoscale"]
        return Response(SimulationSerializer(simulate(found, rules, now=timezone.now())).data)
