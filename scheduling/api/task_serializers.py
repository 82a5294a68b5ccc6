"""Serializers for tasks, their events and their logs."""

from __future__ import annotations

from typing import Any, cast

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from quota.serializers import ReadSerializer
from scheduling.api.fields import LifeField, Quantities, Texts
from scheduling.models import Event, Task


class ExitSerializer(serializers.Serializer[Any]):
    """The end of a task's processes. `at`: seconds since the epoch, from the machine's clock."""

    cause = serializers.CharField()
    at = serializers.FloatField(required=False)
    status = serializers.IntegerField(required=False, allow_null=True)
    signal = serializers.IntegerField(required=False, allow_null=True)
    detail = serializers.CharField(required=False)


class StoppingSerializer(serializers.Serializer[Any]):
    """A run of a task (an incarnation) that has to stop and whose processes have not ended yet."""

    incarnation = serializers.IntegerField()
    machine = serializers.CharField(source="machine.hostname")
    cause = serializers.CharField(help_text="Why the task stops: kill, update, preemption, machine-shutdown …")
    since = serializers.DateTimeField()


class TaskMaintenanceSerializer(serializers.Serializer[Any]):
    """The next maintenance of a machine. Before it starts, the task moves to another machine or ends."""

    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()


class TaskSerializer(ReadSerializer):
    """A task. `up`: the task runs and is healthy. `since`: when the state or `up` last changed. `maintenance`: the next
    maintenance of its machine.

    `alloc`: the alloc in which the task runs, as `set/index`. `devices`: the numbers of the accelerators that the task
    uses. `stopping`: earlier runs (incarnations) of the task that have not ended yet. A dead or pending task can have
    them too.
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
    maintenance = serializers.SerializerMethodField()

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
            "maintenance",
        ]
        read_only_fields = fields

    @extend_schema_field({"type": ["string", "null"], "format": "ip"})
    def get_address(self, task: Task) -> str | None:
        """Return the task's own address, or the address of its machine if the task has none."""
        return task.address or (task.machine.address if task.machine else None)

    @extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
    def get_ports(self, task: Task) -> dict[str, int]:
        names = self.context["port_names"].get(task.spec_version, [])
        return dict(zip(names, task.ports, strict=False))

    @extend_schema_field({"type": ["string", "null"]})
    def get_alloc(self, task: Task) -> str | None:
        return cast("str | None", self.context["allocs"].get(task.alloc_id))

    @extend_schema_field(TaskMaintenanceSerializer(allow_null=True))
    def get_maintenance(self, task: Task) -> Any:
        window = self.context["maintenance"].get(task.machine_id)
        return TaskMaintenanceSerializer(window).data if window is not None else None

    @extend_schema_field(ExitSerializer(allow_null=True))
    def get_exit(self, task: Task) -> dict[str, Any] | None:
        return task.exit


class CellTaskSerializer(TaskSerializer):
    """A task in a list of the tasks of many jobs."""

    job = serializers.CharField(source="job.name")
    tenant = serializers.CharField(source="job.tenant.name")
    labels = Texts(source="job.labels", help_text="The labels of its job.")

    class Meta(TaskSerializer.Meta):
        fields = ["tenant", "job", "labels", *TaskSerializer.Meta.fields]
        read_only_fields = fields

    @extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
    def get_ports(self, task: Task) -> dict[str, int]:
        names = self.context["port_names"].get((task.job_id, task.spec_version), [])
        return dict(zip(names, task.ports, strict=False))


class EventSerializer(ReadSerializer):
    """An event of the cell's journal. `caused_by`: revision and sequence number of the event that caused this event."""

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
    """A line that the search found. `at`: the approximate time when it was printed; null if unknown."""

    offset = serializers.IntegerField()
    text = serializers.CharField(allow_blank=True)
    at = serializers.DateTimeField(allow_null=True)


class LogSerializer(serializers.Serializer[Any]):
    """A part of a task's log. `offset`: the position of the first byte of `text` in the log. `end`: the position after
    the last byte of `text`. `complete`: False if a request that searches the log stopped before the log's end; then
    repeat the request with `end` as the offset.
    """

    stream = serializers.CharField()
    offset = serializers.IntegerField()
    end = serializers.IntegerField()
    text = serializers.CharField(allow_blank=True)
    lines = LogLineSerializer(many=True)
    complete = serializers.BooleanField()
