"""The index of archived jobs: what finds a job that is only in the archive, and the file with its rows."""

import django.db.models.deletion
from django.db import migrations, models

import quota.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0016_expired_quota_by_its_name"),
        ("scheduling", "0037_study_cells"),
    ]

    operations = [
        migrations.CreateModel(
            "ArchivedJob",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("uid", models.UUIDField()),
                ("name", quota.models.fields.DnsLabelField(verbose_name="name")),
                ("kind", models.CharField(max_length=16, verbose_name="kind")),
                ("alloc_set_id", models.BigIntegerField(null=True)),
                ("priority", models.PositiveIntegerField(verbose_name="priority")),
                ("latency_sensitive", models.BooleanField(verbose_name="latency-sensitive")),
                ("labels", models.JSONField(verbose_name="labels")),
                ("outcome", models.CharField(max_length=16, verbose_name="outcome")),
                ("created_at", models.DateTimeField(verbose_name="submitted")),
                ("ended_at", models.DateTimeField(verbose_name="ended")),
                ("recalled_at", models.DateTimeField(null=True)),
                (
                    "cell",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="archived_jobs",
                        to="scheduling.cell",
                    ),
                ),
                (
                    "file",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="jobs", to="scheduling.archivefile"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="archived_jobs",
                        to="quota.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "archived job",
                "verbose_name_plural": "archived jobs",
                "ordering": ["id"],
                "indexes": [models.Index(fields=["tenant", "name"], name="archived_job_by_name")],
            },
        ),
    ]
