"""The shapes of answers and of small bodies. Job files have their own schema: `scheduling.api.jobfile`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import extend_schema_field, inline_serializer
from rest_framework import serializers

from quota.errors import Refused
from quota.resources import as_mapping
from scheduling.api.jobfile import JobFileSerializer
from scheduling.api.shapes import FitSerializer, fit_document
from scheduling.core.states import MachineStatus, TaskState
from scheduling.models import Cell, Event, Job, JobSpec, Machine, Task, Update
from scheduling.models.machines import REMOVED
from scheduling.services.plans import JobPlan
from scheduling.spec import KINDS

_SHARES = ("added", "removed", "restarted", "in_place", "kept")


class Quantities(serializers.Field):
    """A vector as an object: CPU in milli-cores, RAM and disk in bytes."""

    def to_representation(self, value: list[int]) -> dict[str, int]:
        return as_mapping(value, extra=self.context.get("extra", ()))


Quantities = extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})(Quantities)


def _one_of(*values: str) -> type[serializers.CharField]:
    """A text with few values. Written as constants: OpenAPI's generator gives enumerations clashing names."""
    field = type("OneOf", (serializers.CharField,), {})
    return extend_schema_field({"type": "string", "oneOf": [{"const": value} for value in values]})(field)


LifeField = _one_of(*(state.value for state in TaskState))  # of jobs and tasks alike
MachineStateField = _one_of(*(state.value for state in MachineStatus), REMOVED)
UpdateStateField = _one_of(Update.OPEN, Update.DONE, Update.SUPERSEDED, Update.STOPPED)
JobKindField = _one_of(*KINDS.values())


class Texts(serializers.DictField):
    child = serializers.CharField()


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


class UpdateSerializer(serializers.ModelSerializer):
    state = UpdateStateField()

    class Meta:
        model = Update
        fields = [
            "from_version", "to_version", "state", "detail", "undo", "max_down", "max_disruptions", "disruptions",
            "actor", "created_at", "ended_at",
        ]  # fmt: skip
        read_only_fields = fields


class UpdateDetailSerializer(UpdateSerializer):
    tasks_followed = serializers.IntegerField(help_text="Tasks that follow the new version.")

    class Meta(UpdateSerializer.Meta):
        fields = [*UpdateSerializer.Meta.fields, "tasks_followed"]
        read_only_fields = fields


class JobSerializer(serializers.ModelSerializer):
    """`tasks_up`: up, and healthy where a check is declared. `tasks_wanted`: what the spec in force asks for.

    `requested` is what quota is charged with: nothing for a job inside an alloc set.
    """

    cell = serializers.CharField(source="cell.name")
    tenant = serializers.CharField(source="tenant.name")
    kind = JobKindField()
    alloc_set = serializers.CharField(
        source="alloc_set.name",
        default=None,
        allow_null=True,
        help_text="The alloc set that its tasks live in.",
    )
    state = LifeField()
    labels = Texts()
    appclass = serializers.SerializerMethodField()
    requested = Quantities()
    tasks_wanted = serializers.IntegerField()
    update = serializers.SerializerMethodField()
    revision = serializers.IntegerField(source="cell.revision", help_text="Of the cell, when this was read.")

    class Meta:
        model = Job
        fields = [
            "uid", "cell", "tenant", "name", "kind", "alloc_set", "gang", "disruption_budget", "labels", "priority",
            "band", "appclass", "state", "outcome", "spec_version", "requested", "tasks_wanted", "tasks_total",
            "tasks_pending", "tasks_running", "tasks_up", "tasks_dead", "update", "submitted_by", "created_at",
            "ended_at", "revision",
        ]  # fmt: skip
        read_only_fields = fields

    def get_appclass(self, job: Job) -> str:
        return "latency-sensitive" if job.latency_sensitive else "batch"

    @extend_schema_field(UpdateSerializer(allow_null=True))
    def get_update(self, job: Job) -> dict[str, Any] | None:
        return UpdateSerializer(job.open_updates[0]).data if job.open_updates else None


class JobDetailSerializer(JobSerializer):
    """`why`: sentences on what the job waits for. `spec`: its job file, every field present."""

    why = serializers.ListField(child=serializers.CharField(), source="told")
    spec = JobFileSerializer(source="file")

    class Meta(JobSerializer.Meta):
        fields = [*JobSerializer.Meta.fields, "why", "spec"]
        read_only_fields = fields


class ExitSerializer(serializers.Serializer):
    """How processes ended. `at`: seconds since the epoch, by the machine's clock."""

    cause = serializers.CharField()
    at = serializers.FloatField(required=False)
    status = serializers.IntegerField(required=False, allow_null=True)
    signal = serializers.IntegerField(required=False, allow_null=True)
    detail = serializers.CharField(required=False)


class TaskSerializer(serializers.ModelSerializer):
    """`up`: what people call running. `since`: in this state, or up or not up.

    `alloc`: the alloc it lives in, as `set/index`. `devices`: which of its machine's accelerators it has.
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

    class Meta:
        model = Task
        fields = [
            "index", "state", "phase", "health", "up", "machine", "address", "ports", "alloc", "devices",
            "incarnation", "spec_version", "restarts", "evictions", "limit", "reservation", "outcome", "exit",
            "detail", "since",
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


class VersionSerializer(serializers.ModelSerializer):
    spec = JobFileSerializer()

    class Meta:
        model = JobSpec
        fields = ["version", "digest", "actor", "created_at", "spec"]
        read_only_fields = fields


class KillSerializer(serializers.Serializer):
    indexes = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=2**31 - 1), required=False, allow_null=True,
        allow_empty=False, help_text="Only these tasks; without it the whole job.",
    )  # fmt: skip
    reason = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")
    confirm = serializers.IntegerField(
        required=False, allow_null=True, default=None, min_value=0,
        help_text="How many running tasks may stop, where that is much of the cell.",
    )  # fmt: skip


KilledSerializer = inline_serializer(
    "Killed",
    {
        "killed": serializers.IntegerField(help_text="Tasks that die by it."),
        "dry_run": serializers.BooleanField(),
    },
)


class ProblemSerializer(serializers.Serializer):
    """RFC 9457: why not. `fields`: what is wrong, by path. `figures`: the numbers behind it."""

    type = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    fields_ = Texts(required=False)
    figures = serializers.DictField(required=False)
    request_id = serializers.CharField(required=False)

    def get_fields(self) -> dict[str, serializers.Field]:
        known = super().get_fields()
        return {name.rstrip("_"): field for name, field in known.items()}


class SharesSerializer(serializers.Serializer):
    added = serializers.IntegerField()
    removed = serializers.IntegerField()
    restarted = serializers.IntegerField()
    in_place = serializers.IntegerField()
    kept = serializers.IntegerField()


class ChangeSerializer(serializers.Serializer):
    """What a submission or change does, or with `dry_run` and in plans would do.

    `tasks`: how many are added, removed, restarted, changed in place, kept; `ranges`: which, as [first, last].
    """

    outcome = serializers.ChoiceField(["submitted", "updated", "unchanged", "refused"])
    dry_run = serializers.BooleanField()
    version = serializers.IntegerField()
    sentence = serializers.CharField()
    tasks = SharesSerializer()
    ranges = serializers.DictField(
        child=serializers.ListField(child=serializers.ListField(child=serializers.IntegerField()))
    )
    max_down = serializers.IntegerField()
    problem = ProblemSerializer(allow_null=True)
    job = JobSerializer(allow_null=True)
    guidance = FitSerializer(many=True, help_text="Of plans: whether its tasks would fit.")
    names = serializers.ListField(
        child=serializers.CharField(),
        help_text="What changes for who asks for the job by name, at once: times, weights, its service.",
    )


class VerdictSerializer(serializers.Serializer):
    """On one job of a bulk. `uid` of the job that is live by it."""

    name = serializers.CharField()
    tenant = serializers.CharField()
    outcome = serializers.ChoiceField(["submitted", "unchanged", "refused"])
    uid = serializers.UUIDField(allow_null=True)
    problem = ProblemSerializer(allow_null=True)


BulkSerializer = inline_serializer(
    "BulkVerdicts",
    {
        "submitted": serializers.IntegerField(),
        "unchanged": serializers.IntegerField(),
        "refused": serializers.IntegerField(),
        "dry_run": serializers.BooleanField(),
        "results": VerdictSerializer(many=True),
    },
)


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


def problem_document(refused: Refused) -> dict[str, Any]:
    return {
        "type": f"urn:borg:{refused.code}",
        "status": refused.status,
        "code": refused.code,
        "detail": refused.detail,
        "fields": refused.fields,
        "figures": refused.figures,
    }


def change_document(
    plan: JobPlan, outcome: str, *, rehearsed: bool, job: Job | None, extra: Sequence[str] = ()
) -> dict[str, Any]:
    """`extra`: the cell's own resources, for what plans say of them."""
    return {
        "outcome": outcome,
        "dry_run": rehearsed,
        "version": plan.version,
        "sentence": plan.sentence(),
        "tasks": {name: plan.tasks[name].count if name in plan.tasks else 0 for name in _SHARES},
        "ranges": {name: [list(span) for span in share.ranges] for name, share in plan.tasks.items()},
        "max_down": plan.max_down,
        "problem": problem_document(plan.problem) if plan.problem else None,
        "job": JobSerializer(job, context={"extra": job.cell.extra_resources}).data if job else None,
        "guidance": [fit_document(fit, extra=extra) for fit in plan.guidance],
        "names": list(plan.names),
    }
