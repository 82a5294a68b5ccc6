"""Machines (§2.2)."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField, VectorField, never_negative
from scheduling.core.vocabulary.states import MachineStatus, PoolUse
from scheduling.models.cells import Cell
from scheduling.policy.cpu_factors import ONE

REMOVED = "removed"


class Machine(models.Model):
    """A machine and its Borglet. The time of the machine's last report is in Redis, not in a column.

    `session`: the number of the Borglet's newest connection; messages of older connections are ignored.
    `secret_digest`: digest of the secret with which the Borglet connects. `next_digest`: digest of the next secret;
    the old and the next secret are valid until the machine uses the next secret. `authority`: digest of the
    certificates of the TLS authorities that the Borglet trusts. `quarantined`: incarnations that the Borglet runs and
    that this database does not contain. `kept`: the capacity that the folders of ended allocs still use (`KeptAlloc`);
    the scheduler does not use this capacity. `packages`: digests of the installed packages. `granted`: the capacity
    that was accepted before the Borglet reported less; empty if it has not reported less.
    `capacity`: its CPU is in normalised milli-cores. `cpu_factor`: the factor of the machine's platform with which
    they were computed. `machine_cpu`: the CPU that was accepted, in milli-cores of the machine; null if the factor is
    1. The CPU of `granted` is in milli-cores of the machine too.
    `attributes`: those that the Borglet reports, those that SREs have set, and `pool`. `set_attributes`: those of them
    that SREs have set. `hidden_attributes`: the reported values that they replace. `assigned_pool`: the pool into
    which a person has put the machine; "" if selectors of pools decide.
    """

    cell = models.ForeignKey(Cell, models.PROTECT, related_name="machines", db_index=False)
    hostname = DnsLabelField(_("hostname"))
    address = models.GenericIPAddressField(_("address"))
    capacity = VectorField(_("capacity"))
    cpu_factor = models.PositiveIntegerField(_("CPU factor in thousandths"), default=ONE, db_default=ONE)
    machine_cpu = models.BigIntegerField(_("CPU in milli-cores of the machine"), null=True, blank=True)
    granted = VectorField(_("capacity accepted earlier"), default=list, db_default=[], blank=True)
    kept = VectorField(_("used by files of ended allocs"), default=list, db_default=[], blank=True)
    attributes = models.JSONField(_("attributes"), default=dict, blank=True)
    set_attributes = models.JSONField(_("attributes that SREs have set"), default=dict, db_default={}, blank=True)
    hidden_attributes = models.JSONField(default=dict, db_default={}, blank=True)
    assigned_pool = models.CharField(_("pool by assignment"), max_length=63, default="", db_default="", blank=True)
    platform = models.CharField(_("platform"), max_length=63, blank=True)
    rack = models.CharField(_("rack"), max_length=63, blank=True)
    power_domain = models.CharField(_("power domain"), max_length=63, blank=True)
    port_low = models.PositiveIntegerField(default=20000)
    port_high = models.PositiveIntegerField(default=29999)
    state = models.CharField(
        _("state"),
        max_length=16,
        default=MachineStatus.UP.value,
        choices=[(state.value, state.value) for state in MachineStatus] + [(REMOVED, REMOVED)],
    )
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    state_since = models.DateTimeField(_("in this state since"), default=timezone.now)
    secret_digest = models.CharField(max_length=64, blank=True)
    next_digest = models.CharField(max_length=64, blank=True, default="", db_default="")
    secret_at = models.DateTimeField(_("secret issued"), null=True, blank=True)
    rotation_asked = models.BooleanField(_("new secret requested"), default=False, db_default=False)
    authority = models.CharField(
        _("digest of the trusted TLS authorities"), max_length=64, blank=True, default="", db_default=""
    )
    session = models.BigIntegerField(default=0)
    boot_id = models.CharField(max_length=64, blank=True)
    software = models.CharField(_("Borglet version"), max_length=64, blank=True)
    quarantined = models.JSONField(_("unknown tasks in quarantine"), default=list, blank=True)
    packages = ArrayField(models.CharField(max_length=71), default=list, db_default=[], blank=True)
    joined_at = models.DateTimeField(_("joined"), auto_now_add=True)

    class Meta:
        ordering = ["cell", "hostname"]
        # Pages and the master count machines. With this index they do not read the rows, which are wide.
        indexes = [
            models.Index(fields=["cell", "state", "rack"], name="machine_by_state"),
            models.Index(fields=["cell"], name="machine_in_pool", condition=Q(attributes__has_key="pool")),
        ]
        constraints = [
            models.UniqueConstraint(fields=["cell", "hostname"], name="one_machine_per_hostname"),
            never_negative("capacity", "capacity_never_negative"),
            models.CheckConstraint(
                condition=Q(cpu_factor=ONE, machine_cpu__isnull=True)
                | (~Q(cpu_factor=ONE) & Q(machine_cpu__isnull=False)),
                name="machine_cpu_with_factor",
            ),
            models.CheckConstraint(
                condition=Q(port_low__gte=1, port_high__lte=65535, port_low__lte=F("port_high")), name="ports_in_range"
            ),
        ]
        verbose_name = _("machine")
        verbose_name_plural = _("machines")

    def __str__(self) -> str:
        return str(self.hostname)

    @property
    def machine_capacity(self) -> list[int]:
        """Return the capacity with the CPU in milli-cores of the machine, as its Borglet reports it."""
        return list(self.capacity) if self.machine_cpu is None else [self.machine_cpu, *self.capacity[1:]]


class Pool(models.Model):
    """A machine pool of a cell (`scheduling.pools`). The attribute `pool` of a machine names the pool.

    `selector`: machines that match belong to the pool, unless a person has put them into another one. It reads
    attributes that SREs have set, and facts.
    `tenants`: the names of its tenants. `dedicated`: only their tasks may run on its machines. `use`: whether their
    tasks `may`, `prefer` to, or `must` run there. `others`: whether running tasks of other tenants `stay` until they
    end, or `leave` within disruption budgets.
    """

    STAY, LEAVE = "stay", "leave"
    OTHERS = (STAY, LEAVE)

    cell = models.ForeignKey(Cell, models.PROTECT, related_name="pools", db_index=False)  # the constraint
    name = DnsLabelField(_("name"))
    description = models.CharField(_("description"), max_length=300, blank=True)
    selector = models.CharField(_("selector of its machines"), max_length=2000, blank=True)
    tenants = ArrayField(models.CharField(max_length=63), verbose_name=_("tenants"), default=list, blank=True)
    dedicated = models.BooleanField(_("only these tenants run there"), default=False)
    use = models.CharField(
        _("how its tenants use it"),
        max_length=16,
        default=PoolUse.MAY.value,
        choices=[(use.value, use.value) for use in PoolUse],
    )
    others = models.CharField(
        _("running tasks of other tenants"), max_length=16, default=STAY, choices=[(one, one) for one in OTHERS]
    )
    changed_by = models.CharField(_("changed by"), max_length=200)
    changed_at = models.DateTimeField(_("changed"))

    class Meta:
        ordering = ["cell", "name"]
        constraints = [models.UniqueConstraint(fields=["cell", "name"], name="one_pool_per_name")]
        verbose_name = _("machine pool")
        verbose_name_plural = _("machine pools")

    def __str__(self) -> str:
        return str(self.name)


class Drain(models.Model):
    """The drain of a machine. It ends only when an SRE ends it, not when the machine goes down or joins again.

    `tasks`: the number of tasks on the machine when the drain began. `break_budgets`: after the deadline, tasks are
    evicted in spite of the disruption budgets of their jobs. `repacking`: the re-packing that drains the machine.
    `window`: the maintenance window for which the machine is drained. `only`: the ids of the tasks that leave; null:
    all tasks. If it is empty, the machine only receives no new tasks.
    """

    machine = models.OneToOneField(Machine, models.CASCADE, related_name="drain", verbose_name=_("machine"))
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    asked_by = models.CharField(_("requested by"), max_length=200)
    began_at = models.DateTimeField(_("began"))
    deadline = models.DateTimeField(_("deadline"), null=True, blank=True)
    break_budgets = models.BooleanField(_("at the deadline, evict despite disruption budgets"), default=False)
    tasks = models.PositiveIntegerField(_("tasks when the drain began"), default=0)
    only = ArrayField(models.BigIntegerField(), verbose_name=_("tasks that leave"), null=True, blank=True)
    repacking = models.ForeignKey(
        "Repacking", models.SET_NULL, null=True, blank=True, related_name="drains", verbose_name=_("re-packing")
    )
    window = models.ForeignKey(
        "MaintenanceWindow",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="drains",
        verbose_name=_("maintenance window"),
    )

    class Meta:
        ordering = ["machine"]
        verbose_name = _("drain")
        verbose_name_plural = _("drains")

    def __str__(self) -> str:
        return f"drain of {self.machine}"


class MaintenanceWindow(models.Model):
    """A maintenance window: machines that have to be empty from `starts_at` until `ends_at`.

    It covers the machines whose hostnames are `machines`, or all machines of `rack` or `power_domain`. `lead_s`: how
    many seconds before the start the machines are drained; null: the master estimates it. `break_budgets`: at the
    start, the remaining tasks are evicted despite disruption budgets. `returned`: the ids of the machines that a
    person has returned early, and that do not belong to the window any more. `drains_at`: when the drains began.
    `changed_by`: who wrote the window last.
    """

    PLANNED, DRAINING, ENDED, CANCELLED = "planned", "draining", "ended", "cancelled"
    OPEN = (PLANNED, DRAINING)
    STATES = (*OPEN, ENDED, CANCELLED)

    cell = models.ForeignKey(Cell, models.PROTECT, related_name="maintenance_windows")
    machines = ArrayField(models.CharField(max_length=63), verbose_name=_("machines"), default=list, blank=True)
    rack = models.CharField(_("rack"), max_length=63, blank=True)
    power_domain = models.CharField(_("power domain"), max_length=63, blank=True)
    starts_at = models.DateTimeField(_("starts"))
    ends_at = models.DateTimeField(_("ends"))
    lead_s = models.FloatField(_("seconds of draining before the start"), null=True, blank=True)
    break_budgets = models.BooleanField(_("at the start, evict despite disruption budgets"), default=False)
    reason = models.CharField(_("reason"), max_length=300)
    state = models.CharField(_("state"), max_length=16, default=PLANNED, choices=[(s, s) for s in STATES])
    detail = models.CharField(_("detail"), max_length=500, blank=True)
    asked_by = models.CharField(_("requested by"), max_length=200)
    changed_by = models.CharField(_("changed by"), max_length=200, blank=True)
    created_at = models.DateTimeField(_("requested"))
    drains_at = models.DateTimeField(_("drains began"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    returned = ArrayField(models.BigIntegerField(), default=list, blank=True)

    class Meta:
        ordering = ["-starts_at", "-id"]
        indexes = [
            models.Index(fields=["cell"], name="open_window_by_cell", condition=Q(state__in=("planned", "draining")))
        ]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="window_ends_after_its_start")
        ]
        verbose_name = _("maintenance window")
        verbose_name_plural = _("maintenance windows")

    def __str__(self) -> str:
        return f"maintenance window {self.pk}"


class Repacking(models.Model):
    """A re-packing of a cell: its plan, and the run of this plan (`scheduling.repacking`).

    `goal`: `machines` (after it, `number` machines have no task) or `job` (a pending task of `job_id` fits).
    `most_moves`: how many tasks may move. `job_share`: which share of the tasks of a job may move; at least its
    disruption budget may. `most_priority`: tasks of a higher priority stay. `at_once`: how many tasks may be moving at
    the same time. `moves`: how many tasks the plan moves. `reached`: whether the plan reaches the goal. `obstacles`:
    how many machines were left out, by reason. `jobs`: the jobs that lose tasks, as `{job, name, moves, spare, tasks,
    may, down}`. `spare`: how many more tasks move if all spare machines are used. `tries`: how often a master has begun
    to plan.
    """

    PLANNING, PLANNED, RUNNING = "planning", "planned", "running"
    DONE, STOPPED, FAILED, REPLACED = "done", "stopped", "failed", "replaced"
    OPEN = (PLANNING, PLANNED, RUNNING)
    STATES = (*OPEN, DONE, STOPPED, FAILED, REPLACED)
    MACHINES, JOB = "machines", "job"

    cell = models.ForeignKey(Cell, models.PROTECT, related_name="repackings")
    goal = models.CharField(_("goal"), max_length=16, choices=[(goal, goal) for goal in (MACHINES, JOB)])
    number = models.PositiveIntegerField(_("machines to free"), default=0)
    job_id = models.BigIntegerField(null=True, blank=True)
    job_name = models.CharField(_("name of the job"), max_length=130, blank=True)
    most_moves = models.PositiveIntegerField(_("most moves"))
    job_share = models.FloatField(_("share of a job that may move"))
    most_priority = models.PositiveIntegerField(_("highest priority that moves"))
    at_once = models.PositiveIntegerField(_("tasks that move at once"))
    reason = models.CharField(_("reason"), max_length=300)
    asked_by = models.CharField(_("requested by"), max_length=200)
    started_by = models.CharField(_("started by"), max_length=200, blank=True)
    state = models.CharField(_("state"), max_length=16, default=PLANNING, choices=[(s, s) for s in STATES])
    detail = models.CharField(_("detail"), max_length=500, blank=True)
    moves = models.PositiveIntegerField(_("tasks to move"), default=0)
    already_free = models.PositiveIntegerField(_("machines that are free already"), default=0)
    reached = models.BooleanField(_("the plan reaches the goal"), default=False)
    obstacles = models.JSONField(_("obstacles"), default=dict, blank=True)
    jobs = models.JSONField(_("jobs"), default=list, blank=True)
    tries = models.PositiveSmallIntegerField(default=0)
    planning_s = models.FloatField(_("time of planning, s"), null=True, blank=True)
    created_at = models.DateTimeField(_("requested"))
    planned_at = models.DateTimeField(_("planned"), null=True, blank=True)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["cell"], name="one_open_repacking", condition=Q(state__in=("planning", "planned", "running"))
            )
        ]
        verbose_name = _("re-packing")
        verbose_name_plural = _("re-packings")

    def __str__(self) -> str:
        return f"re-packing {self.pk}"


class RepackingStep(models.Model):
    """A step of a re-packing: the tasks that leave one machine. `position`: the order in which steps begin.

    `state`: `spare` (the step begins only if another one is skipped), `waiting`, `moving`, `freed` (the tasks have
    left, and are up again), or `skipped`, for the reason `detail`. `tasks`: the ids of the tasks that leave, without
    those inside allocs until the step begins. `awaited`: the ids of those that were up when it began. `moves`: how many
    leave, those inside allocs included.
    """

    SPARE, WAITING, MOVING, FREED, SKIPPED = "spare", "waiting", "moving", "freed", "skipped"
    STATES = (SPARE, WAITING, MOVING, FREED, SKIPPED)

    repacking = models.ForeignKey(Repacking, models.CASCADE, related_name="steps", db_index=False)  # the constraint
    position = models.PositiveIntegerField(_("position"))
    machine = models.ForeignKey(Machine, models.CASCADE, related_name="+", verbose_name=_("machine"))
    state = models.CharField(_("state"), max_length=16, default=WAITING, choices=[(s, s) for s in STATES])
    tasks = ArrayField(models.BigIntegerField(), verbose_name=_("tasks"), default=list, blank=True)
    awaited = ArrayField(models.BigIntegerField(), default=list, db_default=[], blank=True)
    moves = models.PositiveIntegerField(_("tasks to move"), default=0)
    detail = models.CharField(_("detail"), max_length=500, blank=True)
    began_at = models.DateTimeField(_("began"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    class Meta:
        ordering = ["repacking", "position"]
        constraints = [models.UniqueConstraint(fields=["repacking", "position"], name="one_step_per_position")]
        verbose_name = _("step of a re-packing")
        verbose_name_plural = _("steps of re-packings")

    def __str__(self) -> str:
        return f"{self.repacking}, machine {self.machine}"
