"""The shapes of answers about cells and machines, and of bodies that ask for their change."""

from __future__ import annotations

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers

from scheduling.api.fields import MachineStateField, Quantities, Texts
from scheduling.models import Cell, Machine


class CellSerializer(serializers.ModelSerializer):
    class Meta:
        model = Cell
        fields = ["name", "cluster", "site", "revision", "history_id", "extra_resources", "created_at"]
        read_only_fields = fields


class CellDetailSerializer(CellSerializer):
    """`machines`, `tasks`, `jobs`: numbers by state; of the jobs that the caller may see."""

    machines = serializers.DictField(child=serializers.IntegerField(), source="counts.machines")
    tasks = serializers.DictField(child=serializers.IntegerField(), source="counts.tasks")
    jobs = serializers.DictField(child=serializers.IntegerField(), source="counts.jobs")

    class Meta(CellSerializer.Meta):
        fields = [*CellSerializer.Meta.fields, "machines", "tasks", "jobs"]
        read_only_fields = fields


class MachineSerializer(serializers.ModelSerializer):
    state = MachineStateField()
    capacity = Quantities()
    attributes = Texts()
    tasks_running = serializers.IntegerField()
    quarantined = serializers.ListField(child=serializers.DictField())

    class Meta:
        model = Machine
        fields = [
            "hostname", "address", "state", "reason", "capacity", "attributes", "platform", "rack", "power_domain",
            "port_low", "port_high", "software", "tasks_running", "quarantined", "joined_at",
        ]  # fmt: skip
        read_only_fields = fields


class ReasonSerializer(serializers.Serializer):
    reason = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class GrowSerializer(serializers.Serializer):
    capacity = serializers.DictField(
        child=serializers.JSONField(),
        help_text="By resource, as job files spell quantities: 64, 256Gi. What is not named stays as it is.",
    )


class DrainSerializer(ReasonSerializer):
    deadline_s = serializers.FloatField(
        required=False, allow_null=True, default=None, help_text="Seconds by which they should be empty."
    )
    break_budgets = serializers.BooleanField(
        default=False, help_text="At the deadline tasks leave whatever their jobs' budgets say."
    )
    confirm = serializers.IntegerField(
        required=False, allow_null=True, default=None, min_value=0,
        help_text="How many tasks may leave, where that is much of the cell.",
    )  # fmt: skip


class NewJoinTokenSerializer(serializers.Serializer):
    uses = serializers.IntegerField(default=1, min_value=1, max_value=1_000_000)
    ttl_s = serializers.FloatField(default=3600.0, min_value=1, help_text="Seconds until it expires.")


JoinTokenSerializer = inline_serializer(
    "IssuedJoinToken", {"token": serializers.CharField(help_text="Shown this once.")}
)
