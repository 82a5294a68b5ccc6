"""Serializers for tasks, their events and their logs."""

from __future__ import annotations

from typing import Any, cast

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from quota.serializers import ReadSerializer
from scheduling.api.fields import LifeField, Quantities
from scheduling.models import Event, Task


class ExitSerializer(serializers.Serializer[Any]):
    """How processes ended. `at`: seconds since the epoch, from the machine's clock."""

    cause = serializers.CharField()
    at = serializers.FloatField(required=False)
    status = serializers.IntegerField(required=False, allow_null=True)
    signal = serializers.IntegerField(required=False, allow_null=True)
    detail = serializers.CharField(required=False)


class StoppingSerializer(serializers.Serializer[Any]):
    """An incarnation that was evicted, until its machine reports that its processes have ended."""

    incarnation = serializers.IntegerField()
    machine = serializers.CharField(source="machine.hostname")
    cause = serializers.CharField(help_text="Why the task stops: kill, update, preemption, machine-shutdown …")
    since = serializers.DateTimeField()


class TaskSerializer(ReadSerializer):
    """`up`: the task runs and is healthy. `since`: when the state or `up` last changed.

    `alloc`: the alloc in which it runs, as `set/index`. `devices`: the accelerators of its machine that it has.
    `stopping`: its earlier incarnations that have not ended yet. A dead or pending task can have them too.
    """

    state = LifeField()
    machine = serializers.CharField(source="machine.hostname", default=None, allow_null=True)
    address = serializers.SerializerMethodField()
    ports = serializers.SerializerMethodField()
    alloc = serializers.SerializerMethodField()
    devices = serializers.ListField(child=serializers.IntegerField())
    limit = Quantities()
    reservation = Quantities()
    exit = serializers.SerializerMethodField()
    stopping = StoppingSerializer(many=True, source="departures")

    class Meta:
        model = Task
        fields = [
            "index",
            "state",
            "phase",
            "health",
            "up",
            "machine",
            "address",
            "ports",
            "alloc",
            "devices",
            "incarnation",
            "spec_version",
            "restarts",
            "evictions",
            "limit",
            "reservation",
            "outcome",
            "exit",
            "detail",
            "since",
            "stopping",
        ]
        read_only_fields = fields

    @extend_schema_field({"type": ["string", "null"], "format": "ip"})
    def get_address(self, task: Task) -> str | None:
        """Return the address of the task: its own, or the one of its machine."""
        return task.address or (task.machine.address if task.machine else None)

    @extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
    def get_ports(self, task: Task) -> dict[str, int]:
        names = self.context["port_names"].get(task.spec_version, [])
        return dict(zip(names, task.ports, strict=False))

    @extend_schema_field({"type": ["string", "null"]})
    def get_alloc(self, task: Task) -> str | None:
        return cast("str | None", self.context["allocs"].get(task.alloc_id))

    @extend_schema_field(ExitSerializer(allow_null=True))
    def get_exit(self, task: Task) -> dict[str, Any] | None:
        return task.exit


class EventSerializer(ReadSerializer):
    """An event. `caused_by`: revision and seq of the event that caused it."""

    time = serializers.DateTimeField()
    job = serializers.SerializerMethodField()
    machine = serializers.SerializerMethodField()
    caused_by = serializers.SerializerMethodField()
    data = serializers.DictField()  # type: ignore[assignment]

    class Meta:
        model = Event
        fields = [
            "revision",
            "seq",
            "time",
            "kind",
            "job",
            "task_index",
            "machine",
            "actor",
            "request_id",
            "caused_by",
            "data",
        ]
        read_only_fields = fields

    @extend_schema_field({"type": ["string", "null"], "description": "tenant/job"})
    def get_job(self, event: Event) -> str | None:
        return cast("str | None", self.context["jobs"].get(event.job_id))

    @extend_schema_field({"type": ["string", "null"], "description": "hostname"})
    def get_machine(self, event: Event) -> str | None:
        return cast("str | None", self.context["machines"].get(event.machine_id))

    @extend_schema_field({"type": ["string", "null"], "description": "revision.seq"})
    def get_caused_by(self, event: Event) -> str | None:
        if event.caused_by_revision is None:
            return None
        return f"{event.caused_by_revision}.{event.caused_by_seq}"


class LogLineSerializer(serializers.Serializer[Any]):
    """A line that the search found. `at`: about when it was printed; null if that is unknown."""

    offset = serializers.IntegerField()
    text = serializers.CharField(allow_blank=True)
    at = serializers.DateTimeField(allow_null=True)


class LogSerializer(serializers.Serializer[Any]):
    """Part of a log. `offset`: the first byte of `text`, counted from the incarnation's first start.

    `end`: the byte after `text`. `complete`: the search reached the end of the log; if false, ask again from `end`.
    """

    stream = serializers.CharField()
    offset = serializers.IntegerField()
    end = serializers.IntegerField()
    text = serializers.CharField(allow_blank=True)
    lines = LogLineSerializer(many=True)
    complete = serializers.BooleanField()
