"""The shapes of answers about tasks: what they are, what happened to them, what they printed."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling.api.fields import LifeField, Quantities
from scheduling.models import Event, Task


class ExitSerializer(serializers.Serializer):
    """How processes ended. `at`: seconds since the epoch, by the machine's clock."""

    cause = serializers.CharField()
    at = serializers.FloatField(required=False)
    status = serializers.IntegerField(required=False, allow_null=True)
    signal = serializers.IntegerField(required=False, allow_null=True)
    detail = serializers.CharField(required=False)


class StoppingSerializer(serializers.Serializer):
    """An incarnation that has lost its place, until its machine says that its processes are gone."""

    incarnation = serializers.IntegerField()
    machine = serializers.CharField(source="machine.hostname")
    cause = serializers.CharField(help_text="Why it stops: kill, update, preemption, machine-shutdown …")
    since = serializers.DateTimeField()


class TaskSerializer(serializers.ModelSerializer):
    """`up`: what people call running. `since`: in this state, or up or not up.

    `alloc`: the alloc it lives in, as `set/index`. `devices`: which of its machine's accelerators it has. `stopping`:
    its incarnations that have not ended yet, also of a task that is dead or waits to be placed anew.
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
            "index", "state", "phase", "health", "up", "machine", "address", "ports", "alloc", "devices",
            "incarnation", "spec_version", "restarts", "evictions", "limit", "reservation", "outcome", "exit",
            "detail", "since", "stopping",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field({"type": ["string", "null"], "format": "ip"})
    def get_address(self, task: Task) -> str | None:
        """Where clients reach it: at its own address, or its machine's."""
        return task.address or (task.machine.address if task.machine else None)

    @extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
    def get_ports(self, task: Task) -> dict[str, int]:
        names = self.context["port_names"].get(task.spec_version, [])
        return dict(zip(names, task.ports, strict=False))

    @extend_schema_field({"type": ["string", "null"]})
    def get_alloc(self, task: Task) -> str | None:
        return self.context["allocs"].get(task.alloc_id)

    @extend_schema_field(ExitSerializer(allow_null=True))
    def get_exit(self, task: Task) -> dict[str, Any] | None:
        return task.exit


class EventSerializer(serializers.ModelSerializer):
    """One piece of news. `caused_by`: the place of the event that made it happen."""

    time = serializers.DateTimeField()
    job = serializers.SerializerMethodField()
    machine = serializers.SerializerMethodField()
    caused_by = serializers.SerializerMethodField()
    data = serializers.DictField()

    class Meta:
        model = Event
        fields = [
            "revision", "seq", "time", "kind", "job", "task_index", "machine", "actor", "request_id", "caused_by",
            "data",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field({"type": ["string", "null"], "description": "tenant/job"})
    def get_job(self, event: Event) -> str | None:
        return self.context["jobs"].get(event.job_id)

    @extend_schema_field({"type": ["string", "null"], "description": "hostname"})
    def get_machine(self, event: Event) -> str | None:
        return self.context["machines"].get(event.machine_id)

    @extend_schema_field({"type": ["string", "null"], "description": "revision.seq"})
    def get_caused_by(self, event: Event) -> str | None:
        if event.caused_by_revision is None:
            return None
        return f"{event.caused_by_revision}.{event.caused_by_seq}"


class LogLineSerializer(serializers.Serializer):
    """A line that was searched for. `at`: about when it was printed, null where nobody knows."""

    offset = serializers.IntegerField()
    text = serializers.CharField(allow_blank=True)
    at = serializers.DateTimeField(allow_null=True)


class LogSerializer(serializers.Serializer):
    """`offset` of the first byte of `text` since the incarnation's first start, `end` of the next one to ask for.
    `complete`: a search came to the end of the log; else ask again from `end`."""

    stream = serializers.CharField()
    offset = serializers.IntegerField()
    end = serializers.IntegerField()
    text = serializers.CharField(allow_blank=True)
    lines = LogLineSerializer(many=True)
    complete = serializers.BooleanField()
