"""Notices about jobs: one row per job and condition, and the revision up to which each journal was read for notices.

Rows of failing jobs are copied. Tenants are not notified of what happened before this migration: the journals are read
from their present revisions on. The table `scheduling_failingjob` stays, without a reference to jobs, so that processes
of the release before still run. A later release removes it.
"""

from typing import Any

import django.db.models.deletion
from django.db import migrations, models
from django.utils import timezone

COPY = """
INSERT INTO scheduling_jobcondition (job_id, condition, since, told_at)
SELECT job_id, 'failing', since, told_at FROM scheduling_failingjob
"""
BEGIN = """
INSERT INTO scheduling_jobnoticereader (cell_id, revision)
SELECT id, revision FROM scheduling_cell WHERE study_of IS NULL AND deleted_at IS NULL
"""


def remove_task(apps: Any, schema_editor: Any) -> None:
    """Remove the periodic task that only examined failing jobs."""
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(task="scheduling.failing_jobs").delete()
    # A running beat reads its tasks again.
    changes = apps.get_model("django_celery_beat", "PeriodicTasks").objects
    changes.update_or_create(ident=1, defaults={"last_update": timezone.now()})


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0047_restarts_and_pauses"), ("django_celery_beat", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="JobCondition",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "condition",
                    models.CharField(
                        choices=[
                            ("failing", "failing"),
                            ("crash-looping", "crash-looping"),
                            ("pending", "pending"),
                            ("deadline-at-risk", "deadline-at-risk"),
                        ],
                        max_length=32,
                        verbose_name="condition",
                    ),
                ),
                ("since", models.DateTimeField(verbose_name="since")),
                ("told_at", models.DateTimeField(blank=True, null=True, verbose_name="tenant notified")),
                (
                    "job",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="conditions",
                        to="scheduling.job",
                    ),
                ),
            ],
            options={
                "verbose_name": "condition of a job",
                "verbose_name_plural": "conditions of jobs",
                "constraints": [models.UniqueConstraint(fields=("job", "condition"), name="one_row_per_condition")],
            },
        ),
        migrations.CreateModel(
            name="JobNoticeReader",
            fields=[
                (
                    "cell",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="job_notice_reader",
                        serialize=False,
                        to="scheduling.cell",
                    ),
                ),
                ("revision", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name": "progress of the notices about jobs",
                "verbose_name_plural": "progress of the notices about jobs",
            },
        ),
        migrations.RunSQL(COPY, migrations.RunSQL.noop),
        migrations.RunSQL(BEGIN, migrations.RunSQL.noop),
        migrations.AlterField(
            model_name="failingjob",
            name="job",
            field=models.OneToOneField(
                db_constraint=False,
                on_delete=django.db.models.deletion.CASCADE,
                primary_key=True,
                related_name="failing",
                serialize=False,
                to="scheduling.job",
            ),
        ),
        migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel("FailingJob")]),
        migrations.RunPython(remove_task, migrations.RunPython.noop),
    ]
