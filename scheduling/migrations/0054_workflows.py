"""Workflows, their nodes, and the progress of the processes that advance them."""

import django.core.validators
import django.db.models.deletion
import quota.models.fields
import uuid
from django.conf import settings
from django.db import migrations, models

NAME = django.core.validators.RegexValidator(
    "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?\\Z",
    "Use a DNS label: lower-case letters, digits and hyphens, first a letter, at most 63 characters.",
)
STATES = ("running", "paused", "cancelling", "succeeded", "failed", "cancelled")


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0020_metered_hours_have_partitions"),
        ("scheduling", "0053_templates_of_jobs"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Workflow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("name", quota.models.fields.DnsLabelField(max_length=63, validators=[NAME], verbose_name="name")),
                ("labels", models.JSONField(blank=True, default=dict, verbose_name="labels")),
                ("parameters", models.JSONField(blank=True, default=dict, verbose_name="parameters")),
                ("secrets", models.JSONField(blank=True, default=dict)),
                ("digest", models.CharField(max_length=64)),
                ("parallel", models.PositiveIntegerField(verbose_name="live jobs at once")),
                ("keep_s", models.FloatField(verbose_name="time to live after the end, s")),
                (
                    "state",
                    models.CharField(
                        choices=[(state, state) for state in STATES],
                        default="running",
                        max_length=16,
                        verbose_name="state",
                    ),
                ),
                ("nodes", models.PositiveIntegerField(verbose_name="nodes")),
                ("nodes_left", models.PositiveIntegerField(verbose_name="nodes that have not ended")),
                ("nodes_failed", models.PositiveIntegerField(default=0, verbose_name="failed nodes")),
                ("ready", models.PositiveIntegerField(default=0, verbose_name="ready")),
                ("live", models.PositiveIntegerField(default=0, verbose_name="live jobs")),
                ("held_until", models.DateTimeField(blank=True, null=True, verbose_name="held until")),
                ("held_s", models.FloatField(default=0.0, verbose_name="last pause, s")),
                ("asks", models.PositiveIntegerField(default=0)),
                ("detail", models.CharField(blank=True, max_length=500, verbose_name="detail")),
                ("key", models.CharField(blank=True, default="", max_length=64, verbose_name="idempotency key")),
                ("owner_name", models.CharField(max_length=200, verbose_name="name of the owner")),
                ("created_at", models.DateTimeField(verbose_name="submitted")),
                ("changed_at", models.DateTimeField(verbose_name="changed")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended")),
                (
                    "cell",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="workflows",
                        to="scheduling.cell",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="owner",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="workflows",
                        to="quota.tenant",
                    ),
                ),
            ],
            options={"verbose_name": "workflow", "verbose_name_plural": "workflows", "ordering": ["-id"]},
        ),
        migrations.CreateModel(
            name="WorkflowNode",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("cell_id", models.BigIntegerField()),
                ("name", quota.models.fields.DnsLabelField(max_length=63, validators=[NAME], verbose_name="name")),
                ("branch", models.IntegerField(default=-1, verbose_name="branch")),
                ("template", models.JSONField(blank=True, default=dict, verbose_name="job")),
                ("tasks", models.PositiveIntegerField(default=0, verbose_name="tasks")),
                ("size", models.PositiveIntegerField(default=0, verbose_name="bytes read at the start")),
                ("variables", models.JSONField(blank=True, default=dict)),
                ("rules", models.JSONField(blank=True, default=dict)),
                ("after", models.JSONField(blank=True, default=dict)),
                ("next", models.JSONField(blank=True, default=dict)),
                ("layer", models.PositiveIntegerField(default=0, verbose_name="layer")),
                ("state", models.CharField(max_length=16, verbose_name="state")),
                ("unmet", models.PositiveIntegerField(default=0)),
                ("propagates", models.BooleanField(default=False)),
                ("attempt", models.PositiveIntegerField(default=0, verbose_name="attempt")),
                ("retries", models.PositiveIntegerField(default=0, verbose_name="retries")),
                ("retries_left", models.PositiveIntegerField(default=0, verbose_name="retries left")),
                ("branches_left", models.PositiveIntegerField(default=0, verbose_name="branches left")),
                ("branches_failed", models.PositiveIntegerField(default=0, verbose_name="failed branches")),
                ("not_before", models.DateTimeField(blank=True, null=True, verbose_name="not before")),
                ("item", models.JSONField(blank=True, null=True, verbose_name="item")),
                ("result", models.JSONField(blank=True, null=True, verbose_name="result")),
                ("job_id", models.BigIntegerField(blank=True, null=True)),
                ("job_name", models.CharField(blank=True, max_length=63, verbose_name="job")),
                ("code", models.CharField(blank=True, max_length=64, verbose_name="code")),
                ("detail", models.CharField(blank=True, max_length=500, verbose_name="detail")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended")),
                (
                    "workflow",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="node_rows",
                        to="scheduling.workflow",
                    ),
                ),
            ],
            options={
                "verbose_name": "node of a workflow",
                "verbose_name_plural": "nodes of workflows",
                "ordering": ["workflow", "layer", "id"],
            },
        ),
        migrations.CreateModel(
            name="WorkflowReader",
            fields=[
                (
                    "cell",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="workflow_reader",
                        serialize=False,
                        to="scheduling.cell",
                    ),
                ),
                ("revision", models.BigIntegerField(default=0)),
                ("turned_at", models.DateTimeField(verbose_name="last turn")),
            ],
            options={"verbose_name": "progress of workflows", "verbose_name_plural": "progress of workflows"},
        ),
        migrations.AddIndex(
            model_name="workflow", index=models.Index(fields=["tenant", "cell", "name"], name="workflow_by_name")
        ),
        migrations.AddIndex(
            model_name="workflow",
            index=models.Index(fields=["cell"], name="workflow_live", condition=models.Q(("ended_at__isnull", True))),
        ),
        migrations.AddIndex(
            model_name="workflow",
            index=models.Index(
                fields=["cell", "tenant", "ended_at"],
                name="workflow_by_end",
                condition=models.Q(("ended_at__isnull", False)),
            ),
        ),
        migrations.AddConstraint(
            model_name="workflow",
            constraint=models.UniqueConstraint(
                fields=("tenant", "cell", "name"),
                name="one_live_workflow_per_name",
                condition=models.Q(("ended_at__isnull", True)),
            ),
        ),
        migrations.AddConstraint(
            model_name="workflow",
            constraint=models.UniqueConstraint(
                fields=("tenant", "cell", "key"),
                name="one_workflow_per_key",
                condition=models.Q(("key", ""), _negated=True),
            ),
        ),
        migrations.AddIndex(
            model_name="workflownode",
            index=models.Index(
                fields=["workflow", "job_name"],
                name="workflow_node_by_name",
                condition=models.Q(("job_name", ""), _negated=True),
            ),
        ),
        migrations.AddIndex(
            model_name="workflownode",
            index=models.Index(
                fields=["job_id"], name="workflow_node_by_job", condition=models.Q(("state", "running"))
            ),
        ),
        migrations.AddIndex(
            model_name="workflownode",
            index=models.Index(
                fields=["workflow", "id"], name="workflow_node_ready", condition=models.Q(("state", "ready"))
            ),
        ),
        migrations.AddIndex(
            model_name="workflownode",
            index=models.Index(
                fields=["cell_id", "id"], name="workflow_node_propagates", condition=models.Q(("propagates", True))
            ),
        ),
        migrations.AddConstraint(
            model_name="workflownode",
            constraint=models.UniqueConstraint(
                fields=("workflow", "name", "branch"), name="one_row_per_workflow_branch"
            ),
        ),
    ]
