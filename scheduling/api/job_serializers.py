"""Serializers for jobs and for requests that kill them. The module `job_file_schema` has the schema of job files."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field, inline_serializer
from rest_framework import serializers

from quota.serializers import ReadSerializer
from scheduling.api.cell_serializers import ConfirmSerializer
from scheduling.api.fields import JobHealthField, JobKindField, LifeField, Quantities, Texts, UpdateStateField
from scheduling.api.job_file_schema import JobFileSerializer
from scheduling.jobs.health import health_of, with_health
from scheduling.jobs.submission.revisions import revision_of
from scheduling.models import Job, JobDependency, JobSpec, Update


class UpdateSerializer(ReadSerializer):
    """An update, or a rolling restart, of a job. `tasks_to_replace`: the number of tasks that a restart replaces; 0 for
    an update. `paused_at`: since when the update is paused; null if it is not paused.

    `canary`: this number of tasks, with the lowest indexes, changes first; 0: all tasks may change. They are promoted
    when all of them have been up for `healthy_s` seconds, and if `by_hand`, the update is resumed then. `rollback`:
    whether a failing task, or the time `deadline_at`, returns the job to its last good version.
    """

    state = UpdateStateField()
    tasks_to_replace = serializers.IntegerField()

    class Meta:
        model = Update
        fields = [
            "from_version",
            "to_version",
            "state",
            "detail",
            "undo",
            "tasks_to_replace",
            "paused_at",
            "canary",
            "healthy_s",
            "by_hand",
            "rollback",
            "deadline_at",
            "max_down",
            "max_disruptions",
            "disruptions",
            "actor",
            "created_at",
            "ended_at",
        ]
        read_only_fields = fields


class UpdateDetailSerializer(UpdateSerializer):
    tasks_followed = serializers.IntegerField(
        help_text="Number of tasks that have the new version, or that were restarted."
    )

    class Meta(UpdateSerializer.Meta):
        fields = [*UpdateSerializer.Meta.fields, "tasks_followed"]
        read_only_fields = fields


class _JobsSerializer(serializers.ListSerializer[Any]):
    """A list of jobs whose health is read for all jobs at once."""

    def to_representation(self, data: Any) -> list[Any]:
        return super().to_representation(with_health(data))


class JobSerializer(ReadSerializer):
    """A job. `tasks_up`: number of tasks that run and whose health check, if they have one, passes. `tasks_wanted`:
    number of tasks in the spec.

    `health`: `failing` when no task is up and tasks crash, are unhealthy or have failed; `degraded` when some tasks are
    up and others are not; `starting` when tasks have machines and none is up yet. `tasks_crashing`: tasks whose
    processes ended unexpectedly and have not run long enough since; `tasks_unhealthy`: tasks whose health check fails;
    `tasks_failed`: tasks that failed and are not restarted.

    `requested`: how much quota the job uses. It is 0 for a job inside an alloc set. `disruption_budget`: how
    many tasks preemption and drains may have down at once. `max_disruptions`: how many tasks they may evict within
    `disruption_window_s` seconds. `max_running`: how many tasks may have a machine at once. For each of them, 0 means
    that there is no limit. `start_after`: no task starts before this time. `waiting`: whether no task
    starts because the job waits for other jobs. `deadline_at`: tasks that have not ended by this time are stopped.
    """

    cell = serializers.CharField(source="cell.name")
    tenant = serializers.CharField(source="tenant.name")
    kind = JobKindField()
    alloc_set = serializers.CharField(
        source="alloc_set.name", default=None, allow_null=True, help_text="The alloc set in which the job's tasks run."
    )
    state = LifeField()
    health = JobHealthField(source="health.state")
    labels = Texts()
    appclass = serializers.SerializerMethodField()
    requested = Quantities()
    tasks_wanted = serializers.IntegerField()
    tasks_crashing = serializers.IntegerField(source="health.troubles.crashing")
    tasks_unhealthy = serializers.IntegerField(source="health.troubles.unhealthy")
    tasks_failed = serializers.IntegerField(source="health.troubles.failed")
    update = serializers.SerializerMethodField()  # type: ignore[assignment]
    waiting = serializers.BooleanField(source="waits_for_jobs")
    revision = serializers.IntegerField(source="cell.revision", help_text="The cell's revision when the job was read.")

    class Meta:
        model = Job
        list_serializer_class = _JobsSerializer
        fields = [
            "uid",
            "cell",
            "tenant",
            "name",
            "kind",
            "alloc_set",
            "gang",
            "disruption_budget",
            "max_disruptions",
            "disruption_window_s",
            "max_running",
            "labels",
            "priority",
            "band",
            "appclass",
            "state",
            "health",
            "outcome",
            "spec_version",
            "requested",
            "tasks_wanted",
            "tasks_total",
            "tasks_pending",
            "tasks_running",
            "tasks_up",
            "tasks_crashing",
            "tasks_unhealthy",
            "tasks_dead",
            "tasks_failed",
            "update",
            "submitted_by",
            "created_at",
            "start_after",
            "waiting",
            "deadline_at",
            "ended_at",
            "revision",
        ]
        read_only_fields = fields

    def to_representation(self, instance: Job) -> dict[str, Any]:
        health_of(instance)
        return super().to_representation(instance)

    def get_appclass(self, job: Job) -> str:
        return "latency-sensitive" if job.latency_sensitive else "batch"

    @extend_schema_field(UpdateSerializer(allow_null=True))
    def get_update(self, job: Job) -> dict[str, Any] | None:
        return UpdateSerializer(job.open_updates[0]).data if job.open_updates else None  # type: ignore[attr-defined]


class JobDependencySerializer(ReadSerializer):
    """A job that a job waits for. `uid`: the UID of the job that had this name at the submission. `goal`: the state
    that it must reach. `reached_at`: when it was seen in this state. `open`: whether the job still waits for it.
    """

    uid = serializers.UUIDField(source="on_uid")

    class Meta:
        model = JobDependency
        fields = ["name", "uid", "goal", "open", "reached_at"]
        read_only_fields = fields


class JobDetailSerializer(JobSerializer):
    """A job with its spec. `after`: the jobs that it waits for. `why`: sentences that explain its state. `spec`: its
    job file with all fields.
    """

    after = JobDependencySerializer(source="waits_for", many=True)

    why = serializers.ListField(child=serializers.CharField(), source="told")
    spec = JobFileSerializer(source="file")
    job_revision = serializers.SerializerMethodField(help_text="For `If-Match`: the revision of the job as it is.")

    class Meta(JobSerializer.Meta):
        fields = [*JobSerializer.Meta.fields, "after", "why", "spec", "job_revision"]
        read_only_fields = fields

    def get_job_revision(self, row: Job) -> str:
        return revision_of(row)


class VersionSerializer(ReadSerializer):
    """A version of a job's spec. Values that the caller may not see are hidden.

    If a value is hidden, the digest is empty: with a digest, the caller could check guesses of the value.
    """

    digest = serializers.SerializerMethodField(help_text="Empty if the spec has hidden values.")
    spec = serializers.SerializerMethodField()

    class Meta:
        model = JobSpec
        fields = ["version", "digest", "actor", "created_at", "spec"]
        read_only_fields = fields

    def get_digest(self, version: JobSpec) -> str:
        return version.digest if self.context["shown"](version.spec) == version.spec else ""

    @extend_schema_field(JobFileSerializer)
    def get_spec(self, version: JobSpec) -> Any:
        return self.context["shown"](version.spec)


class KillSerializer(ConfirmSerializer):
    indexes = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=2**31 - 1),
        required=False,
        allow_null=True,
        allow_empty=False,
        help_text="Indexes of the tasks to kill. If you omit this field, the whole job is killed.",
    )


KilledSerializer = inline_serializer(
    "Killed",
    {"killed": serializers.IntegerField(help_text="Number of killed tasks."), "dry_run": serializers.BooleanField()},
)
