"""Cron jobs, and the history of their runs."""

import django.core.validators
import django.db.models.deletion
import quota.models.fields
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0020_metered_hours_have_partitions"),
        ("scheduling", "0049_gates_of_updates"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="CronJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "name",
                    quota.models.fields.DnsLabelField(
                        max_length=63,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?\\Z",
                                "Use a DNS label: lower-case letters, digits and hyphens, first a letter, at most 63 characters.",
                            )
                        ],
                        verbose_name="name",
                    ),
                ),
                ("labels", models.JSONField(blank=True, default=dict, verbose_name="labels")),
                ("schedule", models.CharField(max_length=200, verbose_name="schedule")),
                ("time_zone", models.CharField(max_length=64, verbose_name="time zone")),
                ("overlap", models.CharField(max_length=8, verbose_name="overlap")),
                ("catch_up_s", models.FloatField(verbose_name="catch-up window, s")),
                ("keep_runs", models.PositiveIntegerField(verbose_name="runs kept")),
                ("template", models.JSONField(verbose_name="job of a run")),
                ("tasks", models.PositiveIntegerField(verbose_name="tasks of a run")),
                ("digest", models.CharField(max_length=64)),
                ("version", models.PositiveIntegerField(default=1, verbose_name="version")),
                ("owner_name", models.CharField(max_length=200, verbose_name="name of the owner")),
                ("suspended_at", models.DateTimeField(blank=True, null=True, verbose_name="suspended")),
                ("next_at", models.DateTimeField(blank=True, null=True, verbose_name="next run")),
                ("created_at", models.DateTimeField(verbose_name="created")),
                ("changed_at", models.DateTimeField(verbose_name="changed")),
                (
                    "cell",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="cron_jobs",
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
                        related_name="cron_jobs",
                        to="quota.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "cron job",
                "verbose_name_plural": "cron jobs",
                "ordering": ["cell", "tenant", "name"],
            },
        ),
        migrations.CreateModel(
            name="CronRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("due_at", models.DateTimeField(verbose_name="due")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("submitted", "submitted"),
                            ("skipped", "skipped"),
                            ("missed", "missed"),
                            ("rejected", "rejected"),
                        ],
                        max_length=16,
                        verbose_name="outcome",
                    ),
                ),
                ("job_name", models.CharField(blank=True, max_length=63, verbose_name="job")),
                ("job_uid", models.UUIDField(blank=True, null=True)),
                ("code", models.CharField(blank=True, max_length=64, verbose_name="code")),
                ("detail", models.CharField(blank=True, max_length=500, verbose_name="detail")),
                ("by", models.CharField(blank=True, max_length=200, verbose_name="started by")),
                ("at", models.DateTimeField(verbose_name="handled")),
                (
                    "cron_job",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="runs",
                        to="scheduling.cronjob",
                    ),
                ),
            ],
            options={
                "verbose_name": "run of a cron job",
                "verbose_name_plural": "runs of cron jobs",
                "ordering": ["-due_at"],
            },
        ),
        migrations.AddIndex(model_name="cronjob", index=models.Index(fields=["cell", "next_at"], name="cron_job_due")),
        migrations.AddConstraint(
            model_name="cronjob",
            constraint=models.UniqueConstraint(fields=("tenant", "cell", "name"), name="one_cron_job_per_name"),
        ),
        migrations.AddConstraint(
            model_name="cronrun",
            constraint=models.UniqueConstraint(fields=("cron_job", "due_at"), name="one_cron_run_per_due_time"),
        ),
    ]
