"""Workflows, their nodes, the workflows that `borgctl apply` has submitted, and the progress of the processes that
advance workflows (`scheduling.workflows`).
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quota.models import Tenant
from quota.models.fields import DnsLabelField
from scheduling.models.cells import Cell


class Workflow(models.Model):
    """A graph of jobs of one tenant in one cell.

    `parameters`: environment variables of all tasks. `parallel`: how many of its jobs are live at once at most.
    `nodes`: the number of nodes in the file. `nodes_left`: those that have not ended. `nodes_failed`: those that
    failed. `ready`: nodes and branches that are ready. `live`: nodes and branches with a live job. `held_until`: no job
    is submitted before this time, because one was rejected that may be accepted later, for example for lack of quota;
    `detail`: the reason. `held_s`: how long the last such pause was. `asks`: how many jobs the next turn submits at
    most after it; 0: no limit. `key`: chosen by the client; a repeated submission with it creates no second workflow.
    `keep_s`: for how many seconds after its end the workflow is kept. `secrets`: by name, the versions of the secrets
    that its jobs use, as texts. `owner`: the user who submitted the workflow, or retried it last. Jobs are submitted
    with the permissions that this user has at that time.
    Only transactions that lock the cell's row change a workflow, except that an erasure changes `owner_name`.
    """

    RUNNING, PAUSED, CANCELLING = "running", "paused", "cancelling"
    SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
    LIVE = (RUNNING, PAUSED, CANCELLING)
    STATES = (*LIVE, SUCCEEDED, FAILED, CANCELLED)

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    cell = models.ForeignKey(Cell, models.PROTECT, related_name="workflows", db_index=False)  # `workflow_live`
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="workflows", db_index=False)  # `workflow_by_name`
    name = DnsLabelField(_("name"))
    labels = models.JSONField(_("labels"), default=dict, blank=True)
    parameters = models.JSONField(_("parameters"), default=dict, blank=True)
    secrets = models.JSONField(default=dict, blank=True)
    configs = models.JSONField(default=dict, db_default={}, blank=True)
    digest = models.CharField(max_length=64)
    parallel = models.PositiveIntegerField(_("live jobs at once"))
    keep_s = models.FloatField(_("time to live after the end, s"))
    state = models.CharField(_("state"), max_length=16, default=RUNNING, choices=[(s, s) for s in STATES])
    nodes = models.PositiveIntegerField(_("nodes"))
    nodes_left = models.PositiveIntegerField(_("nodes that have not ended"))
    nodes_failed = models.PositiveIntegerField(_("failed nodes"), default=0)
    ready = models.PositiveIntegerField(_("ready"), default=0)
    live = models.PositiveIntegerField(_("live jobs"), default=0)
    held_until = models.DateTimeField(_("held until"), null=True, blank=True)
    held_s = models.FloatField(_("last pause, s"), default=0.0)
    asks = models.PositiveIntegerField(default=0)
    detail = models.CharField(_("detail"), max_length=500, blank=True)
    key = models.CharField(_("idempotency key"), max_length=64, default="", blank=True)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+", verbose_name=_("owner")
    )
    owner_name = models.CharField(_("name of the owner"), max_length=200)
    created_at = models.DateTimeField(_("submitted"))
    changed_at = models.DateTimeField(_("changed"))
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["tenant", "cell", "name"], name="workflow_by_name"),
            models.Index(fields=["cell"], name="workflow_live", condition=Q(ended_at__isnull=True)),
            models.Index(
                fields=["cell", "tenant", "ended_at"], name="workflow_by_end", condition=Q(ended_at__isnull=False)
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "cell", "name"], name="one_live_workflow_per_name", condition=Q(ended_at__isnull=True)
            ),
            models.UniqueConstraint(
                fields=["tenant", "cell", "key"], name="one_workflow_per_key", condition=~Q(key="")
            ),
        ]
        verbose_name = _("workflow")
        verbose_name_plural = _("workflows")

    def __str__(self) -> str:
        return str(self.name)

    @property
    def nodes_done(self) -> int:
        """Return how many nodes have ended."""
        return self.nodes - self.nodes_left


class WorkflowNode(models.Model):
    """A node of a workflow, or a branch of a node with `for_each`: the run of the job for one item.

    `branch`: the place of the item; -1 for the node itself. The fields `template` (a job file without name, tenant and
    cell), `rules` (`when` and `for_each`), `after` (the condition of each node before it) and
    `next` (the condition of each node after it) are those of the node, and empty for a branch. `layer`: the length of
    the longest path to the node. `unmet`: how many conditions are not met yet. `propagates`: the node has ended, and
    the nodes after it were not changed yet. `attempt`: how many jobs it had. `branches_left`, `branches_failed`:
    branches that have not ended, and branches that did not succeed. `variables`: of a node with branches, those that
    its branches share. `tasks`: of a node or branch, how many tasks or branches its start creates; `size`: how many
    bytes of rows its start reads. `not_before`: no attempt starts before this time.
    `job_id`: the newest job, which may be only in the archive. Only transactions that lock the cell's row change a
    node, except that its tasks set `result`.
    """

    workflow = models.ForeignKey(Workflow, models.CASCADE, related_name="node_rows", db_index=False)  # the constraint
    cell_id = models.BigIntegerField()
    name = DnsLabelField(_("name"))
    branch = models.IntegerField(_("branch"), default=-1)
    template = models.JSONField(_("job"), default=dict, blank=True)
    tasks = models.PositiveIntegerField(_("tasks"), default=0)
    size = models.PositiveIntegerField(_("bytes read at the start"), default=0)
    variables = models.JSONField(default=dict, blank=True)
    rules = models.JSONField(default=dict, blank=True)
    after = models.JSONField(default=dict, blank=True)
    next = models.JSONField(default=dict, blank=True)
    layer = models.PositiveIntegerField(_("layer"), default=0)
    state = models.CharField(_("state"), max_length=16)
    unmet = models.PositiveIntegerField(default=0)
    propagates = models.BooleanField(default=False)
    attempt = models.PositiveIntegerField(_("attempt"), default=0)
    retries = models.PositiveIntegerField(_("retries"), default=0)
    retries_left = models.PositiveIntegerField(_("retries left"), default=0)
    branches_left = models.PositiveIntegerField(_("branches left"), default=0)
    branches_failed = models.PositiveIntegerField(_("failed branches"), default=0)
    not_before = models.DateTimeField(_("not before"), null=True, blank=True)
    item = models.JSONField(_("item"), null=True, blank=True)
    result = models.JSONField(_("result"), null=True, blank=True)
    job_id = models.BigIntegerField(null=True, blank=True)
    job_name = models.CharField(_("job"), max_length=63, blank=True)
    code = models.CharField(_("code"), max_length=64, blank=True)
    detail = models.CharField(_("detail"), max_length=500, blank=True)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    class Meta:
        ordering = ["workflow", "layer", "id"]
        indexes = [
            models.Index(fields=["job_id"], name="workflow_node_by_job", condition=Q(state="running")),
            models.Index(fields=["workflow", "id"], name="workflow_node_ready", condition=Q(state="ready")),
            models.Index(fields=["cell_id", "id"], name="workflow_node_propagates", condition=Q(propagates=True)),
            models.Index(fields=["workflow", "job_name"], name="workflow_node_by_name", condition=~Q(job_name="")),
        ]
        constraints = [
            models.UniqueConstraint(fields=["workflow", "name", "branch"], name="one_row_per_workflow_branch")
        ]
        verbose_name = _("node of a workflow")
        verbose_name_plural = _("nodes of workflows")

    def __str__(self) -> str:
        return str(self.name) if self.branch < 0 else f"{self.name}/{self.branch}"


class WorkflowReader(models.Model):
    """How far the journal of a cell was read for the ends of jobs of workflows. `turned_at`: the last turn."""

    cell = models.OneToOneField(Cell, models.CASCADE, primary_key=True, related_name="workflow_reader")
    revision = models.BigIntegerField(default=0)
    turned_at = models.DateTimeField(_("last turn"))

    class Meta:
        verbose_name = _("progress of workflows")
        verbose_name_plural = _("progress of workflows")

    def __str__(self) -> str:
        return f"{self.cell} at revision {self.revision}"


class AppliedWorkflow(models.Model):
    """The file of a workflow that was submitted last with `if_changed`, as `borgctl apply` does. `digest`: of the
    workflow. The row stays when the workflow has ended and was deleted, so that an equal file does not run again.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="+", db_index=False)  # the constraint
    cell = models.ForeignKey(Cell, models.CASCADE, related_name="+")
    name = DnsLabelField(_("name"))
    digest = models.CharField(max_length=64)
    submitted_at = models.DateTimeField(_("submitted"))

    class Meta:
        ordering = ["tenant", "cell", "name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "cell", "name"], name="one_applied_file_per_name")]
        verbose_name = _("applied workflow")
        verbose_name_plural = _("applied workflows")

    def __str__(self) -> str:
        return str(self.name)
