"""Serializers for cells and machines, and for requests that change them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema_field, inline_serializer
from rest_framework import serializers

from quota.serializers import ReadSerializer
from quota.vocabulary.resources import CPU
from scheduling.api.fields import MachineStateField, Quantities, Texts
from scheduling.cells.platform_factors import PlatformCpu
from scheduling.models import Cell, Machine
from scheduling.policy import cell_settings
from scheduling.policy.cpu_factors import ONE
from scheduling.promises.promise_rules import promise_of, sentences

_SETTINGS = "Settings by name. `GET cells/{cell}/settings/` lists all of them."


class OriginSerializer(serializers.Serializer[Any]):
    """The origin of a study cell, which is a copy of another cell or a recorded simulation. `cell`: the name of the
    copied cell, or the source of the simulated machines and jobs. `revision`: the revision that was copied. `history`:
    the id of the history of the copied cell. `redacted`: whether hashes replace the names.
    """

    cell = serializers.CharField()
    revision = serializers.IntegerField()
    history = serializers.CharField()
    redacted = serializers.BooleanField()


class CellSerializer(ReadSerializer):
    """A cell. `cluster`, `site`: the names of its cluster and of the cluster's site; empty if they are not recorded."""

    cluster = serializers.CharField(source="cluster_name")
    site = serializers.CharField(source="site_name")
    study_of = OriginSerializer(allow_null=True)

    class Meta:
        model = Cell
        fields = [
            *("name", "cluster", "site", "revision", "history_id", "extra_resources", "study_of", "created_at"),
            *("deleted_at", "deleted_name"),
        ]
        read_only_fields = fields


class NewCellSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63, help_text="A DNS label, such as `prod`. All names of jobs contain it.")
    cluster = serializers.CharField(
        max_length=63,
        allow_blank=True,
        default="",
        help_text="Name of the cluster, which is created if it does not exist. Empty: that of the site, or none.",
    )
    site = serializers.CharField(
        max_length=63,
        allow_blank=True,
        default="",
        help_text="Name of the site, which is created if it does not exist. Empty: that of the cluster.",
    )
    settings = serializers.DictField(child=serializers.JSONField(), default=dict, help_text=_SETTINGS)


class CellMoveSerializer(serializers.Serializer[Any]):
    cluster = serializers.CharField(
        max_length=63, allow_blank=True, help_text="Name of the cluster to which the cell belongs. Empty: none."
    )


class CellChangesSerializer(serializers.Serializer[Any]):
    settings = serializers.DictField(
        child=serializers.JSONField(allow_null=True), help_text=f"{_SETTINGS} null sets the default value."
    )


class PlatformSerializer(serializers.Serializer[Any]):
    """The machines of a cell with the same platform and CPU factor."""

    platform = serializers.CharField(help_text="Empty: machines without a platform.")
    cpu_factor = serializers.SerializerMethodField(help_text="How many normalised cores one of their cores counts as.")
    machines = serializers.IntegerField(help_text="0 if the settings name a platform that no machine has.")
    machine_cpu = serializers.IntegerField(help_text="Their CPU, in milli-cores of the machines.")
    cpu = serializers.IntegerField(help_text="Their CPU, in normalised milli-cores.")

    def get_cpu_factor(self, platform: PlatformCpu) -> float:
        return platform.cpu_factor / ONE


class CellSettingsSerializer(serializers.Serializer[Any]):
    """The settings of a cell. `stored`: those that were set. `in_force`: all settings, with default values.
    `platforms`: the machines by platform, with the CPU factors in force.
    """

    stored = serializers.DictField(child=serializers.JSONField())
    in_force = serializers.DictField(child=serializers.JSONField())
    platforms = PlatformSerializer(many=True)


class PromiseSerializer(serializers.Serializer[Any]):
    """What a cell promises to prod tasks within quota. `start_s`: the seconds within which they start; `evictions`: how
    often each is evicted in 30 days at most; 0: not promised. `share`: the credited share of the price of pending time.
    `eviction_hours`: the hours of the price that are credited per eviction beyond the promise.
    """

    start_s = serializers.FloatField()
    evictions = serializers.IntegerField()
    share = serializers.FloatField()
    eviction_hours = serializers.FloatField()
    sentences = serializers.ListField(child=serializers.CharField())


class CellDetailSerializer(CellSerializer):
    """A cell. `machines`, `tasks`, `jobs`: how many of them are in each state. Jobs that you may not see are not
    counted, and neither are their tasks.
    """

    machines = serializers.DictField(child=serializers.IntegerField(), source="counts.machines")
    tasks = serializers.DictField(child=serializers.IntegerField(), source="counts.tasks")
    jobs = serializers.DictField(child=serializers.IntegerField(), source="counts.jobs")
    promise = serializers.SerializerMethodField()

    class Meta(CellSerializer.Meta):
        fields = [*CellSerializer.Meta.fields, "machines", "tasks", "jobs", "promise"]
        read_only_fields = fields

    @extend_schema_field(PromiseSerializer)
    def get_promise(self, cell: Cell) -> dict[str, Any]:
        promise = promise_of(cell_settings.load(cell.settings))
        return {**asdict(promise), "sentences": sentences(promise)}


class MachineSerializer(ReadSerializer):
    state = MachineStateField()
    capacity = Quantities(help_text="CPU in normalised milli-cores, RAM and disk in bytes.")
    cpu_factor = serializers.SerializerMethodField(
        help_text="How many normalised cores one core of the machine counts as: the factor of its platform."
    )
    machine_cpu = serializers.SerializerMethodField(
        help_text="CPU in milli-cores of the machine, without the CPU factor."
    )
    attributes = Texts()
    set_attributes = Texts(help_text="The attributes that SREs have set.")
    tasks_running = serializers.IntegerField()
    quarantined = serializers.ListField(child=serializers.DictField())

    class Meta:
        model = Machine
        fields = [
            "hostname",
            "address",
            "state",
            "reason",
            "capacity",
            "cpu_factor",
            "machine_cpu",
            "attributes",
            "set_attributes",
            "assigned_pool",
            "platform",
            "rack",
            "power_domain",
            "port_low",
            "port_high",
            "software",
            "tasks_running",
            "quarantined",
            "joined_at",
        ]
        read_only_fields = fields

    def get_cpu_factor(self, machine: Machine) -> float:
        return machine.cpu_factor / ONE

    def get_machine_cpu(self, machine: Machine) -> int:
        return machine.machine_capacity[CPU]


class ReasonSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=300, allow_blank=True, default="")


class ConfirmSerializer(ReasonSerializer):
    confirm = serializers.IntegerField(
        allow_null=True,
        default=None,
        min_value=0,
        help_text="Number of running tasks that may stop. Required if they are a large share of the cell.",
    )


class GrowSerializer(serializers.Serializer[Any]):
    capacity = serializers.DictField(
        child=serializers.JSONField(),
        help_text="Capacity per resource, written as in job files: 64 or 256Gi. Omitted resources do not change. CPU is"
        " in cores of the machine, without the CPU factor of its platform.",
    )


class DrainSerializer(ConfirmSerializer):
    deadline_s = serializers.FloatField(allow_null=True, default=None, help_text="Deadline, in seconds from now.")
    break_budgets = serializers.BooleanField(
        default=False,
        help_text="At the deadline, evict the remaining tasks even beyond the disruption budgets of their jobs.",
    )


class NewJoinTokenSerializer(serializers.Serializer[Any]):
    uses = serializers.IntegerField(default=1, min_value=1, max_value=1_000_000)
    ttl_s = serializers.FloatField(default=3600.0, min_value=1, help_text="Seconds until the token expires.")


JoinTokenSerializer = inline_serializer(
    "IssuedJoinToken", {"token": serializers.CharField(help_text="The token. It is shown only once.")}
)
