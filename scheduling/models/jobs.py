"""Jobs and alloc sets, all versions of their specs, their updates, and cron jobs (§2.3, §2.4)."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Func, Q, Value
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quota.models import Tenant
from quota.models.fields import DnsLabelField, VectorField
from scheduling.core.vocabulary.job_health import Condition
from scheduling.core.vocabulary.states import JobGoal, JobState
from scheduling.models.cells import Cell

# The names of the runs of cron jobs, as in `cron_spec.run_name`; the group is the name of the cron job.
RUN_NAME = "^(.+)-[0-9]{8}t[0-9]{4}(?:[0-9]{2})?z$"
KINDS = [("job", _("job")), ("alloc-set", _("alloc set"))]


class Job(models.Model):
    """A job or an alloc set. A new job may have the name of a dead job, but never its UID.

    `tasks_up`: the number of tasks in phase `up` that are healthy or have no health check. `requested`: the amounts
    that are charged to quota; zero for a job inside an alloc set, because the set is charged. `gang`,
    `max_running`: see `scheduling.spec.job_spec.JobSpecification`. `disruption_budget`: how many tasks preemption and
    drains may have down at once; 0: no limit. `max_disruptions`: how many tasks they may evict within the last
    `disruption_window_s` seconds (`DisruptionCount`); 0: no limit. `published`: the rules for the job's names, as
    `scheduling.core.vocabulary.published.Published` in JSON. `key`: chosen by the client; if the client submits the job
    again with the same key, no second job is created. `start_after`: no task is placed before this
    time. `waiting`: no task is placed, because the job waits for other jobs (`JobDependency`); it stays true if the job
    ends before it starts. `may_start_since`: since when further tasks may start: since then, the job no longer waits
    for others, its `max_running` changed, or the first of `max_running` tasks ended. `deadline_at`: the time at which
    the master ends all tasks that are still live. `max_run_s`: the longest time limit of a run; None if a task has
    none. `ends_within_s`: as in `JobSpecification`. `ttl_after_end_s`: for how many seconds after its end PostgreSQL
    keeps the job, unless the cell keeps ended jobs for a shorter time.
    """

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    cell = models.ForeignKey(Cell, models.PROTECT, related_name="jobs", db_index=False)  # `job_by_state` serves it
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="jobs", db_index=False)  # `job_by_name` serves it
    name = DnsLabelField(_("name"))
    kind = models.CharField(_("kind"), max_length=16, choices=KINDS, default="job")
    alloc_set = models.ForeignKey(
        "self",
        models.PROTECT,
        null=True,
        blank=True,
        db_index=False,
        related_name="inner_jobs",
        verbose_name=_("inside alloc set"),
    )
    labels = models.JSONField(_("labels"), default=dict, blank=True)
    priority = models.PositiveIntegerField(_("priority"))
    band = models.CharField(_("band"), max_length=63)
    latency_sensitive = models.BooleanField(_("latency-sensitive"), default=False)
    port_names = ArrayField(models.CharField(max_length=63), default=list, blank=True)
    state = models.CharField(
        _("state"),
        max_length=16,
        default=JobState.PENDING.value,
        choices=[(state.value, state.value) for state in JobState],
    )
    outcome = models.CharField(_("outcome"), max_length=16, blank=True)
    spec_version = models.PositiveIntegerField(_("version of the spec"), default=1)
    gang = models.BooleanField(_("gang (place all tasks or none)"), default=False, db_default=False)
    disruption_budget = models.PositiveIntegerField(_("disruption budget"), default=0, db_default=0)
    max_disruptions = models.PositiveIntegerField(_("limit on disruptions"), default=0, db_default=0)
    disruption_window_s = models.FloatField(_("window of this limit, s"), default=3600.0, db_default=3600.0)
    max_running = models.PositiveIntegerField(_("limit on placed tasks"), default=0, db_default=0)
    published = models.JSONField(default=dict, db_default={}, blank=True)
    requested = VectorField(_("requested by all tasks"))
    tasks_total = models.PositiveIntegerField(_("tasks"), default=0)
    tasks_pending = models.PositiveIntegerField(_("pending"), default=0)
    tasks_running = models.PositiveIntegerField(_("placed"), default=0)
    tasks_up = models.PositiveIntegerField(_("running"), default=0)
    tasks_dead = models.PositiveIntegerField(_("dead"), default=0)
    submitted_by = models.CharField(_("submitted by"), max_length=200)
    key = models.CharField(_("idempotency key"), max_length=64, default="", db_default="", blank=True)
    created_at = models.DateTimeField(_("submitted"), auto_now_add=True)
    max_run_s = models.FloatField(_("time limit of tasks, s"), null=True, blank=True)
    ends_within_s = models.FloatField(_("a run ends within, s"), null=True, blank=True)
    start_after = models.DateTimeField(_("starts after"), null=True, blank=True)
    waiting = models.BooleanField(_("waits for other jobs"), default=False, db_default=False)
    may_start_since = models.DateTimeField(_("time since which further tasks may start"), null=True, blank=True)
    deadline_at = models.DateTimeField(_("deadline"), null=True, blank=True)
    ttl_after_end_s = models.FloatField(_("time to live after the end, s"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    class Meta:
        ordering = ["cell", "tenant", "name"]
        indexes = [
            models.Index(fields=["alloc_set"], name="job_by_alloc_set", condition=Q(alloc_set__isnull=False)),
            models.Index(fields=["cell"], name="job_gangs", condition=Q(gang=True)),
            models.Index(fields=["cell", "state"], name="job_by_state"),
            models.Index(fields=["tenant", "name", "id"], name="job_by_name"),
            models.Index(
                F("cell"),
                F("tenant"),
                Func(F("name"), Value(RUN_NAME), function="SUBSTRING"),
                name="job_by_cron_job",
                condition=~Q(state=JobState.DEAD.value) & Q(name__regex=RUN_NAME),
            ),
            models.Index(fields=["cell", "ended_at"], name="job_by_end", condition=Q(ended_at__isnull=False)),
            models.Index(
                fields=["cell", "deadline_at"],
                name="job_by_deadline",
                condition=Q(deadline_at__isnull=False, ended_at__isnull=True),
            ),
            models.Index(
                fields=["cell"],
                name="job_with_disruption_rate",
                condition=Q(max_disruptions__gt=0, ended_at__isnull=True),
            ),
            models.Index(fields=["cell"], name="job_waiting", condition=Q(waiting=True, ended_at__isnull=True)),
            models.Index(
                fields=["cell", "ended_at"],
                name="job_by_end_with_ttl",
                condition=Q(ended_at__isnull=False, ttl_after_end_s__isnull=False),
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "cell", "name"], condition=~Q(state=JobState.DEAD.value), name="one_live_job_per_name"
            ),
            models.UniqueConstraint(
                fields=["cell", "tenant", "key"], condition=~Q(key=""), name="one_job_per_tenant_and_key"
            ),
        ]
        verbose_name = _("job")
        verbose_name_plural = _("jobs")

    def __str__(self) -> str:
        return str(self.name)

    @property
    def waits_for_jobs(self) -> bool:
        """Return whether the tasks of the job wait for other jobs. A job that ended while it waited does not wait."""
        return self.waiting and self.state != JobState.DEAD.value


class JobSpec(models.Model):
    """A version of a job's spec, stored as JSON (`scheduling.spec.job_spec`). Old versions are kept.

    `packages`: the size and format of each package in the spec, by digest: {"size_bytes", "format"}. `secrets`,
    `configs`: the names of the secrets and config files that its tasks use.
    """

    job = models.ForeignKey(Job, models.CASCADE, related_name="specs")
    version = models.PositiveIntegerField(_("version"))
    spec = models.JSONField(_("spec"))
    digest = models.CharField(max_length=64)
    packages = models.JSONField(default=dict, db_default={}, blank=True)
    secrets = models.JSONField(default=list, db_default=[], blank=True)
    configs = models.JSONField(default=list, db_default=[], blank=True)
    actor = models.CharField(_("by"), max_length=200)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        ordering = ["job", "version"]
        constraints = [models.UniqueConstraint(fields=["job", "version"], name="one_spec_per_version")]
        indexes = [
            models.Index(fields=["job"], name="spec_not_reclaimed", condition=Q(spec__reclamation=False)),
            GinIndex(fields=["packages"], name="spec_by_package", condition=~Q(packages={})),
            GinIndex(fields=["secrets"], name="spec_by_secret", condition=~Q(secrets=[])),
            GinIndex(fields=["configs"], name="spec_by_config_file", condition=~Q(configs=[])),
        ]
        verbose_name = _("spec")
        verbose_name_plural = _("specs")

    def __str__(self) -> str:
        return f"{self.job} v{self.version}"


class Update(models.Model):
    """A change of a job's tasks from one version of the spec to another, task after task. It can be undone (§2.3).

    `max_down`: how many tasks of the job may be down at the same time. `max_disruptions`: how many restarts and moves
    the update may cause; 0: no limit. The update skips tasks that would exceed this limit. `restarts`: for a rolling
    restart, `[first, last, incarnation]` for ranges of task indexes: the incarnations that it replaces. A restart
    changes no spec. `paused_at`: while it is set, the update does not change further tasks.

    `canary`: as long as it is not 0, only this number of tasks changes, with the lowest indexes. They are promoted when
    all of them have been up for `healthy_s` seconds, and if `by_hand`, a person resumes the update. `rollback`,
    `deadline_at`: whether the job returns to its last good version if a task fails or the update is not done at that
    time.
    """

    OPEN, DONE, SUPERSEDED, STOPPED, ROLLED_BACK = "open", "done", "superseded", "stopped", "rolled-back"

    job = models.ForeignKey(Job, models.CASCADE, related_name="updates")
    from_version = models.PositiveIntegerField()
    to_version = models.PositiveIntegerField()
    max_down = models.PositiveIntegerField(_("limit on tasks down at once"), default=1)
    max_disruptions = models.PositiveIntegerField(_("limit on disruptions"), default=0)
    disruptions = models.PositiveIntegerField(_("disruptions so far"), default=0)
    undo = models.BooleanField(default=False)
    restarts = models.JSONField(default=list, db_default=[], blank=True)
    paused_at = models.DateTimeField(_("paused"), null=True, blank=True)
    canary = models.PositiveIntegerField(_("canary tasks"), default=0, db_default=0)
    healthy_s = models.FloatField(_("seconds until promotion"), default=0.0, db_default=0.0)
    by_hand = models.BooleanField(_("promoted by hand"), default=False, db_default=False)
    rollback = models.BooleanField(_("rolls back"), default=False, db_default=False)
    deadline_at = models.DateTimeField(_("deadline"), null=True, blank=True)
    state = models.CharField(
        _("state"),
        max_length=16,
        default=OPEN,
        choices=[(s, s) for s in (OPEN, DONE, SUPERSEDED, STOPPED, ROLLED_BACK)],
    )
    detail = models.CharField(_("detail"), max_length=300, blank=True)
    actor = models.CharField(_("by"), max_length=200)
    created_at = models.DateTimeField(_("started"), default=timezone.now)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["job"], condition=Q(state="open"), name="one_open_update_per_job")
        ]
        # The autoscaler makes thousands of updates of a job, and asks for the newest one.
        indexes = [models.Index(fields=["job", "-id"], name="newest_update_of_job")]
        verbose_name = _("update")
        verbose_name_plural = _("updates")

    def __str__(self) -> str:
        return f"{self.job} v{self.from_version} to v{self.to_version}"

    @property
    def tasks_to_replace(self) -> int:
        """Return the number of tasks that a rolling restart replaces; 0 for an update to another spec."""
        return sum(last - first + 1 for first, last, _ in self.restarts)


class PendingVerdict(models.Model):
    """The reasons why tasks of a job are pending (§2.6). `whys`: the reasons, as a JSON list of `Why` values. The
    journal does not contain them.
    """

    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="verdict")
    revision = models.BigIntegerField()
    at = models.DateTimeField()
    whys = models.JSONField()

    class Meta:
        verbose_name = _("reason for pending tasks")
        verbose_name_plural = _("reasons for pending tasks")

    def __str__(self) -> str:
        return f"{self.job} at revision {self.revision}"


class JobDependency(models.Model):
    """A job that another job waits for (`after`). `name`: its name. `goal`: the state that it must reach (`JobGoal`).
    `on`: the job, bound when the waiting job was submitted; None if it had ended by then, or if its row was deleted
    since. `on_uid`: its UID. `reached_at`: when it was seen in that state; it does not matter what happens to it
    afterwards. `open`: whether the job still waits for it. It does not if the state was reached, an update has removed
    the name, or the waiting job has ended.

    The journal does not contain these rows. It contains whether a job waits.
    """

    job = models.ForeignKey(Job, models.CASCADE, related_name="dependencies", db_index=False)  # the constraint
    name = DnsLabelField(_("name"))
    goal = models.CharField(_("state to reach"), max_length=16, choices=[(goal.value, goal.value) for goal in JobGoal])
    on = models.ForeignKey(Job, models.SET_NULL, null=True, blank=True, related_name="dependents")
    on_uid = models.UUIDField()
    reached_at = models.DateTimeField(_("reached"), null=True, blank=True)
    open = models.BooleanField(_("open"), default=True)

    class Meta:
        ordering = ["job", "name"]
        constraints = [models.UniqueConstraint(fields=["job", "name"], name="one_dependency_per_name")]
        indexes = [models.Index(fields=["on", "goal"], name="open_dependency", condition=Q(open=True))]
        verbose_name = _("dependency of a job")
        verbose_name_plural = _("dependencies of jobs")

    def __str__(self) -> str:
        return f"{self.job} after {self.name} is {self.goal}"


class JobCondition(models.Model):
    """A condition of a live job of which its tenant is notified, for example that the job is failing. `since`: since
    when the job has the condition. `told_at`: when the tenant was notified.

    The row stays until the condition is over, so the tenant is notified once.
    """

    job = models.ForeignKey(Job, models.CASCADE, related_name="conditions", db_index=False)  # the constraint serves it
    condition = models.CharField(
        _("condition"), max_length=32, choices=[(condition.value, condition.value) for condition in Condition]
    )
    since = models.DateTimeField(_("since"))
    told_at = models.DateTimeField(_("tenant notified"), null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "condition"], name="one_row_per_condition")]
        verbose_name = _("condition of a job")
        verbose_name_plural = _("conditions of jobs")

    def __str__(self) -> str:
        return f"{self.job}: {self.condition} since {self.since:%F %T}"


class StoppedJob(models.Model):
    """A job that ended because its service was stopped (`scheduling.services`). A start of the service submits it
    again. It counts only while no later job of the tenant has its name.

    `service`: the name of the service. `version`: the version of the spec that a start submits. `seen`: the version
    that the job had at the stop. `at`, `by`: when the service was stopped, and by whom. The journal does not contain
    these rows: a master does not need them.
    """

    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="stopped")
    service = DnsLabelField(_("service"))
    version = models.PositiveIntegerField(_("version of the spec"))
    seen = models.PositiveIntegerField(_("version at the stop"))
    at = models.DateTimeField(_("stopped"))
    by = models.CharField(_("stopped by"), max_length=200)

    class Meta:
        verbose_name = _("stopped job of a service")
        verbose_name_plural = _("stopped jobs of services")

    def __str__(self) -> str:
        return f"{self.job} of service {self.service}, stopped {self.at:%F %T}"


class ServiceWeighting(models.Model):
    """How the clients of a service are divided among its tracks, and its last switch (`scheduling.services`). The row
    stays when the service has no live job.

    `weights`: the weight of each track by its name; empty: the service has none. `revision`: of the last event
    `service.weighed`, which has the same weights. `switch`: `scheduling.services.switch_rules.Switch` as JSON, or None
    if the service never had one. `by`: the name of the user who began it. `due_at`: when the next step may happen;
    None without a switch in progress. Only transactions that lock the cell's row change these rows, except that an
    erasure changes `by`.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="service_weightings", db_index=False)  # the constraint
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="service_weightings")
    service = DnsLabelField(_("service"))
    weights = models.JSONField(_("weights"), default=dict, blank=True)
    revision = models.BigIntegerField(_("revision"), default=0)
    switch = models.JSONField(_("switch"), null=True, blank=True)
    by = models.CharField(_("switch begun by"), max_length=200, blank=True, default="")
    due_at = models.DateTimeField(_("next step"), null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cell", "tenant", "service"], name="one_weighting_per_service")]
        indexes = [models.Index(fields=["cell"], name="switches_in_progress", condition=models.Q(due_at__isnull=False))]
        verbose_name = _("weights of a service")
        verbose_name_plural = _("weights of services")

    def __str__(self) -> str:
        return f"weights of service {self.service}"


class JobNoticeReader(models.Model):
    """The revision of a cell's journal up to which tenants were notified of failed jobs and stopped updates."""

    cell = models.OneToOneField(Cell, models.CASCADE, primary_key=True, related_name="job_notice_reader")
    revision = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = _("progress of the notices about jobs")
        verbose_name_plural = _("progress of the notices about jobs")

    def __str__(self) -> str:
        return f"{self.cell} at revision {self.revision}"


class JobTemplate(models.Model):
    """A template: a job with parameters, which a dispatch submits with arguments (`scheduling.job_templates`).

    `content`: description, parameters, job and labels, as `TemplateSpecification.stored`. `labels`: of the template
    itself, not of its jobs. `digest`: of the content. `version`: increases with each change. `last_number`: the last
    number that a dispatch has taken for the name of its job. Only transactions that lock the cell's row change a
    template, except that a dispatch changes `last_number`, and an erasure `changed_by`.
    """

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    cell = models.ForeignKey(Cell, models.PROTECT, related_name="job_templates")
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="job_templates", db_index=False)  # the constraint
    name = DnsLabelField(_("name"))
    description = models.CharField(_("description"), max_length=1000, blank=True)
    labels = models.JSONField(_("labels"), default=dict, db_default={}, blank=True)
    content = models.JSONField(_("content"))
    digest = models.CharField(max_length=64)
    version = models.PositiveIntegerField(_("version"), default=1)
    last_number = models.PositiveIntegerField(_("last number"), default=0)
    changed_by = models.CharField(_("changed by"), max_length=200)
    created_at = models.DateTimeField(_("created"))
    changed_at = models.DateTimeField(_("changed"))

    class Meta:
        ordering = ["cell", "tenant", "name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "cell", "name"], name="one_template_per_name")]
        verbose_name = _("template")
        verbose_name_plural = _("templates")

    def __str__(self) -> str:
        return str(self.name)


class JobTemplateVersion(models.Model):
    """A version of a template. `content`: as in `JobTemplate`. Only the newest versions are kept."""

    template = models.ForeignKey(JobTemplate, models.CASCADE, related_name="versions", db_index=False)
    version = models.PositiveIntegerField(_("version"))
    content = models.JSONField(_("content"))
    actor = models.CharField(_("by"), max_length=200)
    created_at = models.DateTimeField(_("created"))

    class Meta:
        ordering = ["-version"]
        constraints = [models.UniqueConstraint(fields=["template", "version"], name="one_template_per_version")]
        verbose_name = _("version of a template")
        verbose_name_plural = _("versions of templates")

    def __str__(self) -> str:
        return f"{self.template} v{self.version}"


class CronJob(models.Model):
    """A job that is submitted again and again, at the times of a cron line (`scheduling.cron`).

    `schedule`, `time_zone`, `overlap`, `catch_up_s`, `keep_runs`: see `scheduling.cron.cron_spec.CronSpecification`.
    `template`: the job of a run, as a job file without name, tenant and cell. `tasks`: how many tasks it has.
    `digest`: of the whole cron job. `version`: increases with each change. `owner`: the user whose file
    changed the cron job last. Runs are submitted with the permissions that this user has at that time. `owner_name`:
    the user's name. `next_at`: the next due time that was not handled yet; None while the cron job is suspended, or if
    it never runs again. Only transactions that lock the cell's row change a cron job, except that an erasure changes
    `owner_name`.
    """

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    cell = models.ForeignKey(Cell, models.PROTECT, related_name="cron_jobs", db_index=False)  # `cron_job_due`
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="cron_jobs", db_index=False)  # the constraint
    name = DnsLabelField(_("name"))
    labels = models.JSONField(_("labels"), default=dict, blank=True)
    schedule = models.CharField(_("schedule"), max_length=200)
    time_zone = models.CharField(_("time zone"), max_length=64)
    overlap = models.CharField(_("overlap"), max_length=8)
    catch_up_s = models.FloatField(_("catch-up window, s"))
    keep_runs = models.PositiveIntegerField(_("runs kept"))
    template = models.JSONField(_("job of a run"))
    tasks = models.PositiveIntegerField(_("tasks of a run"))
    digest = models.CharField(max_length=64)
    version = models.PositiveIntegerField(_("version"), default=1)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+", verbose_name=_("owner")
    )
    owner_name = models.CharField(_("name of the owner"), max_length=200)
    suspended_at = models.DateTimeField(_("suspended"), null=True, blank=True)
    next_at = models.DateTimeField(_("next run"), null=True, blank=True)
    created_at = models.DateTimeField(_("created"))
    changed_at = models.DateTimeField(_("changed"))

    class Meta:
        ordering = ["cell", "tenant", "name"]
        indexes = [models.Index(fields=["cell", "next_at"], name="cron_job_due")]
        constraints = [models.UniqueConstraint(fields=["tenant", "cell", "name"], name="one_cron_job_per_name")]
        verbose_name = _("cron job")
        verbose_name_plural = _("cron jobs")

    def __str__(self) -> str:
        return str(self.name)


class CronRun(models.Model):
    """A due time of a cron job, and what happened. There is at most one row per cron job and due time. It is written
    in the transaction that submits the job of the run, so each run is submitted exactly once.

    `by`: who asked for this run; empty for a run by the cron line. `job_uid`: the UID of the submitted job; the job may
    be only in the archive. `detail`: why no job was submitted.
    """

    SUBMITTED, SKIPPED, MISSED, REJECTED = "submitted", "skipped", "missed", "rejected"

    cron_job = models.ForeignKey(CronJob, models.CASCADE, related_name="runs", db_index=False)  # the constraint
    due_at = models.DateTimeField(_("due"))
    outcome = models.CharField(
        _("outcome"), max_length=16, choices=[(o, o) for o in (SUBMITTED, SKIPPED, MISSED, REJECTED)]
    )
    job_name = models.CharField(_("job"), max_length=63, blank=True)
    job_uid = models.UUIDField(null=True, blank=True)
    code = models.CharField(_("code"), max_length=64, blank=True)
    detail = models.CharField(_("detail"), max_length=500, blank=True)
    by = models.CharField(_("started by"), max_length=200, blank=True)
    at = models.DateTimeField(_("handled"))

    class Meta:
        ordering = ["-due_at"]
        constraints = [models.UniqueConstraint(fields=["cron_job", "due_at"], name="one_cron_run_per_due_time")]
        verbose_name = _("run of a cron job")
        verbose_name_plural = _("runs of cron jobs")

    def __str__(self) -> str:
        return f"{self.cron_job} due {self.due_at:%F %T}: {self.outcome}"
