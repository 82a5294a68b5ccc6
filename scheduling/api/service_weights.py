"""REST views of the weights of a service and of its switches."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.dry_run import DRY_RUN
from scheduling.api.base import CellView, valid
from scheduling.services import selectors, weights
from scheduling.services.switch_rules import Switch, SwitchState


class TrackSerializer(serializers.Serializer[Any]):
    """A track of a service: the jobs with the same label `track`, or one job without this label."""

    name = serializers.CharField()
    jobs = serializers.ListField(child=serializers.CharField(), help_text="Its live jobs.")
    tasks_wanted = serializers.IntegerField(source="wanted")
    tasks_up = serializers.IntegerField(source="up")
    weight = serializers.IntegerField(allow_null=True, help_text="null: the service has no weights.")
    share = serializers.FloatField(allow_null=True, help_text="Share of the clients in per cent, if all tasks serve.")


class SwitchSerializer(serializers.Serializer[Switch]):
    """The last switch of a service."""

    state = serializers.ChoiceField([state.value for state in SwitchState], help_text="`scheduling/README.md`")
    to = serializers.CharField(help_text="The new track.")
    before = serializers.DictField(
        child=serializers.IntegerField(), help_text="The weights to which a failed switch returns."
    )
    step = serializers.IntegerField(help_text="Per cent of the clients that move at each step.")
    every_s = serializers.IntegerField(help_text="Seconds between two steps.")
    gated = serializers.BooleanField(help_text="Whether steps wait for the health of the new track.")
    enough = serializers.IntegerField(help_text="Per cent of the tasks of the new track that must be up.")
    within_s = serializers.IntegerField(
        help_text="Longest time in seconds that a step waits until enough tasks are up."
    )
    stop_old = serializers.BooleanField(help_text="Whether the jobs of the old tracks are stopped at the end.")
    began_at = serializers.SerializerMethodField()
    next_at = serializers.SerializerMethodField(help_text="When the next step may happen; null if it has ended.")
    ended_at = serializers.SerializerMethodField()
    reason = serializers.CharField(help_text="Why the switch failed or was ended; may be empty.")

    @extend_schema_field(serializers.DateTimeField())
    def get_began_at(self, switch: Switch) -> str:
        return _time(switch.began)

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_next_at(self, switch: Switch) -> str | None:
        return _time(switch.due) if switch.ended is None else None

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_ended_at(self, switch: Switch) -> str | None:
        return None if switch.ended is None else _time(switch.ended)


class TrafficSerializer(serializers.Serializer[weights.Traffic]):
    """How the clients of a service are divided among its tracks."""

    weights = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="Weight of each track; empty: the tracks have none, and the weights of the tasks count.",
    )
    tracks = TrackSerializer(many=True)
    in_progress = serializers.BooleanField(help_text="Whether a switch is in progress.")
    switch = SwitchSerializer(allow_null=True)
    by = serializers.CharField(help_text="Name of the user who began the switch; empty without a switch.")
    stops = serializers.ListField(
        child=serializers.CharField(), help_text="Live jobs that the switch stops at its end."
    )
    notes = serializers.ListField(child=serializers.CharField())


class WeightsSerializer(serializers.Serializer[Any]):
    weights = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="Weight by the name of a track or a job. Others get 0. Empty: the service has no weights any more.",
    )


class SwitchRequestSerializer(serializers.Serializer[Any]):
    to = serializers.CharField(max_length=255, help_text="The new track, or a job of it.")
    step = serializers.IntegerField(default=100, help_text="Per cent of the clients that move at each step.")
    every_s = serializers.IntegerField(
        default=60, help_text="Seconds between two steps, and from the last step to the end of the switch."
    )
    gate = serializers.ChoiceField(
        ["health", "none"], default="health", help_text="`health`: steps wait until enough tasks are up."
    )
    enough = serializers.IntegerField(default=100, help_text="Per cent of the tasks of the new track that must be up.")
    within_s = serializers.IntegerField(
        default=600, help_text="Longest time in seconds that a step waits until enough tasks are up."
    )
    stop_old = serializers.BooleanField(
        default=False, help_text="At the end of the switch, stop the jobs of the other tracks that have clients now."
    )
    confirm = serializers.IntegerField(
        allow_null=True, default=None, min_value=0, help_text="Number of running tasks that `stop_old` may stop."
    )


class ServiceWeightsView(CellView):
    @extend_schema(operation_id="services_weights", responses=TrafficSerializer)
    def get(self, request: Request, cell: str, tenant: str, service: str) -> Response:
        """Return the tracks of a service with their weights, and its last switch."""
        found = selectors.service_named(self.principal, self.cell(cell), tenant, service)
        return Response(TrafficSerializer(weights.traffic_of(found)).data)

    @extend_schema(
        operation_id="services_weigh", parameters=[DRY_RUN], request=WeightsSerializer, responses=TrafficSerializer
    )
    def put(self, request: Request, cell: str, tenant: str, service: str) -> Response:
        """Set the weights of the tracks of a service at once. Ends a switch that is in progress. Idempotent."""
        given = valid(WeightsSerializer, request.data)["weights"]
        found = weights.service_weigh(
            principal=self.principal, cell=self.cell(cell), tenant=tenant, name=service, weights=given
        )
        return Response(TrafficSerializer(found).data)


class ServiceSwitchView(CellView):
    @extend_schema(
        operation_id="services_switch",
        parameters=[DRY_RUN],
        request=SwitchRequestSerializer,
        responses=TrafficSerializer,
    )
    def post(self, request: Request, cell: str, tenant: str, service: str) -> Response:
        """Begin to switch the clients of a service to another track, step by step. If too many tasks of the new track
        fail, the weights return by themselves. Idempotent while the switch is in progress.
        """
        given = valid(SwitchRequestSerializer, request.data)
        to, confirm, gate = given.pop("to"), given.pop("confirm"), given.pop("gate")
        found = weights.service_switch(
            principal=self.principal,
            cell=self.cell(cell),
            tenant=tenant,
            name=service,
            to=to,
            options=weights.SwitchOptions(**given, gated=gate == "health"),
            confirm=confirm,
        )
        return Response(TrafficSerializer(found).data)


def _time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()
