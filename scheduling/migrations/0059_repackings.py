"""Re-packings: plans that move tasks so that machines become free, and their steps. Drains can be limited to some tasks."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0058_autoscaling_of_limits")]

    operations = [
        migrations.AddField(
            model_name="drain",
            name="only",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(), blank=True, null=True, size=None, verbose_name="tasks that leave"
            ),
        ),
        migrations.CreateModel(
            name="Repacking",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "goal",
                    models.CharField(
                        choices=[("machines", "machines"), ("job", "job")], max_length=16, verbose_name="goal"
                    ),
                ),
                ("number", models.PositiveIntegerField(default=0, verbose_name="machines to free")),
                ("job_id", models.BigIntegerField(blank=True, null=True)),
                ("job_name", models.CharField(blank=True, max_length=130, verbose_name="name of the job")),
                ("most_moves", models.PositiveIntegerField(verbose_name="most moves")),
                ("job_share", models.FloatField(verbose_name="share of a job that may move")),
                ("most_priority", models.PositiveIntegerField(verbose_name="highest priority that moves")),
                ("at_once", models.PositiveIntegerField(verbose_name="tasks that move at once")),
                ("reason", models.CharField(max_length=300, verbose_name="reason")),
                ("asked_by", models.CharField(max_length=200, verbose_name="requested by")),
                ("started_by", models.CharField(blank=True, max_length=200, verbose_name="started by")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("planning", "planning"),
                            ("planned", "planned"),
                            ("running", "running"),
                            ("done", "done"),
                            ("stopped", "stopped"),
                            ("failed", "failed"),
                            ("replaced", "replaced"),
                        ],
                        default="planning",
                        max_length=16,
                        verbose_name="state",
                    ),
                ),
                ("detail", models.CharField(blank=True, max_length=500, verbose_name="detail")),
                ("moves", models.PositiveIntegerField(default=0, verbose_name="tasks to move")),
                ("already_free", models.PositiveIntegerField(default=0, verbose_name="machines that are free already")),
                ("reached", models.BooleanField(default=False, verbose_name="the plan reaches the goal")),
                ("obstacles", models.JSONField(blank=True, default=dict, verbose_name="obstacles")),
                ("jobs", models.JSONField(blank=True, default=list, verbose_name="jobs")),
                ("tries", models.PositiveSmallIntegerField(default=0)),
                ("planning_s", models.FloatField(blank=True, null=True, verbose_name="time of planning, s")),
                ("created_at", models.DateTimeField(verbose_name="requested")),
                ("planned_at", models.DateTimeField(blank=True, null=True, verbose_name="planned")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended")),
                (
                    "cell",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="repackings", to="scheduling.cell"
                    ),
                ),
            ],
            options={"verbose_name": "re-packing", "verbose_name_plural": "re-packings", "ordering": ["-id"]},
        ),
        migrations.AddField(
            model_name="drain",
            name="repacking",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="drains",
                to="scheduling.repacking",
                verbose_name="re-packing",
            ),
        ),
        migrations.CreateModel(
            name="RepackingStep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("position", models.PositiveIntegerField(verbose_name="position")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("spare", "spare"),
                            ("waiting", "waiting"),
                            ("moving", "moving"),
                            ("freed", "freed"),
                            ("skipped", "skipped"),
                        ],
                        default="waiting",
                        max_length=16,
                        verbose_name="state",
                    ),
                ),
                (
                    "tasks",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), blank=True, default=list, size=None, verbose_name="tasks"
                    ),
                ),
                ("moves", models.PositiveIntegerField(default=0, verbose_name="tasks to move")),
                ("detail", models.CharField(blank=True, max_length=500, verbose_name="detail")),
                ("began_at", models.DateTimeField(blank=True, null=True, verbose_name="began")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended")),
                (
                    "machine",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="scheduling.machine",
                        verbose_name="machine",
                    ),
                ),
                (
                    "repacking",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="steps",
                        to="scheduling.repacking",
                    ),
                ),
            ],
            options={
                "verbose_name": "step of a re-packing",
                "verbose_name_plural": "steps of re-packings",
                "ordering": ["repacking", "position"],
            },
        ),
        migrations.AddConstraint(
            model_name="repacking",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state__in", ("planning", "planned", "running"))),
                fields=("cell",),
                name="one_open_repacking",
            ),
        ),
        migrations.AddConstraint(
            model_name="repackingstep",
            constraint=models.UniqueConstraint(fields=("repacking", "position"), name="one_step_per_position"),
        ),
    ]
