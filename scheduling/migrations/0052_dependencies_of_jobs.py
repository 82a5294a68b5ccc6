"""Jobs may wait for other jobs, and limit how many of their tasks run at once. The index of names finds the last job of
a name without reading the earlier ones.

This migration locks only the table of jobs, so it cannot deadlock with a master, which locks the cell first.
"""

import django.db.models.deletion
from django.db import migrations, models

import quota.models.fields


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0051_ends_of_runs")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="max_running",
            field=models.PositiveIntegerField(db_default=0, default=0, verbose_name="limit on placed tasks"),
        ),
        migrations.AddField(
            model_name="job",
            name="waiting",
            field=models.BooleanField(db_default=False, default=False, verbose_name="waits for other jobs"),
        ),
        migrations.AddField(
            model_name="job",
            name="may_start_since",
            field=models.DateTimeField(blank=True, null=True, verbose_name="time since which further tasks may start"),
        ),
        migrations.RemoveIndex(model_name="job", name="job_by_name"),
        migrations.AddIndex(
            model_name="job", index=models.Index(fields=["tenant", "name", "id"], name="job_by_name")
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("ended_at__isnull", True), ("waiting", True)), fields=["cell"], name="job_waiting"
            ),
        ),
        migrations.CreateModel(
            name="JobDependency",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", quota.models.fields.DnsLabelField(verbose_name="name")),
                (
                    "goal",
                    models.CharField(
                        choices=[("succeeded", "succeeded"), ("ended", "ended"), ("running", "running")],
                        max_length=16,
                        verbose_name="state to reach",
                    ),
                ),
                ("on_uid", models.UUIDField()),
                ("reached_at", models.DateTimeField(blank=True, null=True, verbose_name="reached")),
                ("open", models.BooleanField(default=True, verbose_name="open")),
                (
                    "job",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="dependencies",
                        to="scheduling.job",
                    ),
                ),
                (
                    "on",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="dependents",
                        to="scheduling.job",
                    ),
                ),
            ],
            options={
                "verbose_name": "dependency of a job",
                "verbose_name_plural": "dependencies of jobs",
                "ordering": ["job", "name"],
            },
        ),
        migrations.AddConstraint(
            model_name="jobdependency",
            constraint=models.UniqueConstraint(fields=("job", "name"), name="one_dependency_per_name"),
        ),
        migrations.AddIndex(
            model_name="jobdependency",
            index=models.Index(condition=models.Q(("open", True)), fields=["on", "goal"], name="open_dependency"),
        ),
    ]
