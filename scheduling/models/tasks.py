"""Tasks, and departures: incarnations that their machine still has to stop."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from borglet.messages import Health, Phase
from quota.models.fields import VectorField, never_negative
from scheduling.core.vocabulary.states import TaskState
from scheduling.models.cells import Cell
from scheduling.models.jobs import Job
from scheduling.models.machines import Machine


class Task(models.Model):
    """A task or an alloc. `id` is `scheduling.core.vocabulary.requirement.task_id(job, index)`.

    `incarnation`: how often the task was placed; after the database or the cell is restored, the number continues at
    the next million. `alloc`: the alloc that contains the task, on the same machine (§2.4). `devices`: the numbers of
    the task's accelerators on the machine. `phase`, `health`: as the Borglet last reported. `up`: the task runs, and
    is healthy or has no health check.
    """

    id = models.BigIntegerField(primary_key=True)
    # The cell of the job, whose foreign key is checked. A second check would cost 4 µs per task.
    cell = models.ForeignKey(Cell, models.PROTECT, related_name="tasks", db_index=False, db_constraint=False)
    # `one_task_per_index` and `task_by_machine` are the indexes on job and machine.
    job = models.ForeignKey(Job, models.CASCADE, related_name="tasks", db_index=False)
    index = models.PositiveIntegerField(_("task index"))
    state = models.CharField(
        _("state"),
        max_length=16,
        default=TaskState.PENDING.value,
        choices=[(state.value, state.value) for state in TaskState],
    )
    machine = models.ForeignKey(Machine, models.PROTECT, null=True, blank=True, related_name="tasks", db_index=False)
    incarnation = models.PositiveIntegerField(_("incarnation"), default=0)
    spec_version = models.PositiveIntegerField(_("version of the spec"), default=1)
    limit = VectorField(_("limit"))
    reservation = VectorField(_("reservation"))
    ports = ArrayField(models.PositiveIntegerField(), default=list, blank=True)
    alloc = models.ForeignKey(
        "self",
        models.RESTRICT,
        null=True,
        blank=True,
        db_index=False,
        related_name="inner_tasks",
        verbose_name=_("inside alloc"),
    )
    devices = ArrayField(
        models.PositiveSmallIntegerField(),
        default=list,
        db_default=[],
        blank=True,
        verbose_name=_("accelerators on the machine"),
    )
    phase = models.CharField(
        _("phase"), max_length=16, blank=True, choices=[(phase.value, phase.value) for phase in Phase]
    )
    health = models.CharField(
        _("health"), max_length=16, blank=True, choices=[(health.value, health.value) for health in Health]
    )
    address = models.CharField(_("the task's own address"), max_length=45, blank=True, default="", db_default="")
    up = models.BooleanField(_("running"), default=False)
    restarts = models.PositiveIntegerField(_("restarts"), default=0)
    evictions = models.PositiveIntegerField(_("evictions"), default=0)
    outcome = models.CharField(_("outcome"), max_length=16, blank=True)
    exit = models.JSONField(_("last exit"), null=True, blank=True)
    detail = models.CharField(_("detail"), max_length=500, blank=True)
    since = models.DateTimeField(_("in this state since"))

    class Meta:
        ordering = ["job", "index"]
        indexes = [
            models.Index(fields=["machine"], name="task_by_machine", condition=Q(machine__isnull=False)),
            models.Index(fields=["alloc"], name="task_by_alloc", condition=Q(alloc__isnull=False)),
            models.Index(fields=["cell"], name="task_pending", condition=Q(state=TaskState.PENDING.value)),
            models.Index(fields=["job"], name="task_restarted", condition=Q(restarts__gt=1)),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "index"], name="one_task_per_index"),
            models.CheckConstraint(
                condition=Q(state=TaskState.RUNNING.value, machine__isnull=False)
                | (~Q(state=TaskState.RUNNING.value) & Q(machine__isnull=True, up=False)),
                name="running_has_machine",
            ),
            models.CheckConstraint(
                condition=Q(state=TaskState.RUNNING.value) | Q(alloc__isnull=True, devices=[]),
                name="only_running_in_alloc_or_on_devices",
            ),
            models.CheckConstraint(condition=Q(alloc__isnull=True) | ~Q(alloc=F("id")), name="no_task_in_itself"),
            never_negative("limit", "limit_never_negative"),
            never_negative("reservation", "reservation_never_negative"),
        ]
        verbose_name = _("task")
        verbose_name_plural = _("tasks")

    def __str__(self) -> str:
        return f"{self.job}/{self.index}"


class Departure(models.Model):
    """An incarnation that has to stop on its machine. The row exists until the Borglet reports that all its processes
    have ended.

    `ports`: the ports that the incarnation still uses. `preemptor`: id of the task that starts when the incarnation
    has ended. `notice_s`: the delay bound of the preemptor, if it has one; empty: the notice period of the task's own
    job file applies.
    """

    task = models.ForeignKey(Task, models.CASCADE, related_name="departures")
    incarnation = models.PositiveIntegerField()
    machine = models.ForeignKey(Machine, models.CASCADE, related_name="departures")
    cause = models.CharField(_("cause of the stop"), max_length=32)
    notice_s = models.FloatField(_("time until SIGKILL, s"), null=True, blank=True)
    ports = ArrayField(models.PositiveIntegerField(), default=list, blank=True)
    preemptor = models.BigIntegerField(null=True, blank=True)
    since = models.DateTimeField(_("stopping since"))

    class Meta:
        indexes = [models.Index(fields=["machine"], name="departure_by_machine")]
        constraints = [models.UniqueConstraint(fields=["task", "incarnation"], name="one_departure")]
        verbose_name = _("stopping task")
        verbose_name_plural = _("stopping tasks")

    def __str__(self) -> str:
        return f"{self.task} incarnation {self.incarnation}"


class DisruptionCount(models.Model):
    """How many tasks of a job were disrupted in a slot of time (§4). Only jobs with `max_disruptions` have rows. A slot
    is a small part of the job's window, so the number of rows per job is bounded. `began_at`: the start of the slot.
    `at`: its last disruption. `number`: how many tasks.

    The journal does not contain these rows. It contains the evictions.
    """

    job = models.ForeignKey("Job", models.CASCADE, related_name="disruption_counts", db_index=False)  # the constraint
    began_at = models.DateTimeField(_("slot"))
    at = models.DateTimeField(_("last disruption"))
    number = models.PositiveIntegerField(_("disrupted tasks"))

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "began_at"], name="one_disruption_count_per_slot")]
        verbose_name = _("disruptions of a job")
        verbose_name_plural = _("disruptions of jobs")

    def __str__(self) -> str:
        return f"{self.job} {self.at:%F %T}: {self.number}"


class CrashedPair(models.Model):
    """A task and a machine on which the task crashed. For some time, the task is only placed on other machines (§4)."""

    task = models.ForeignKey(Task, models.CASCADE, related_name="crashed_pairs")
    machine = models.ForeignKey(Machine, models.CASCADE, related_name="crashed_pairs")
    at = models.DateTimeField(_("at"))

    class Meta:
        constraints = [models.UniqueConstraint(fields=["task", "machine"], name="one_crashed_pair")]
        verbose_name = _("crash of a task on a machine")
        verbose_name_plural = _("crashes of tasks on machines")

    def __str__(self) -> str:
        return f"{self.task} on {self.machine}"
