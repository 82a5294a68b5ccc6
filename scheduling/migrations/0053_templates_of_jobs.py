"""Templates: jobs with parameters, which are submitted with arguments. Each template keeps its newest versions."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

import quota.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0020_metered_hours_have_partitions"),
        ("scheduling", "0052_dependencies_of_jobs"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobTemplate",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("name", quota.models.fields.DnsLabelField(verbose_name="name")),
                ("description", models.CharField(blank=True, max_length=1000, verbose_name="description")),
                ("content", models.JSONField(verbose_name="content")),
                ("digest", models.CharField(max_length=64)),
                ("version", models.PositiveIntegerField(default=1, verbose_name="version")),
                ("last_number", models.PositiveIntegerField(default=0, verbose_name="last number")),
                ("changed_by", models.CharField(max_length=200, verbose_name="changed by")),
                ("created_at", models.DateTimeField(verbose_name="created")),
                ("changed_at", models.DateTimeField(verbose_name="changed")),
                (
                    "cell",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="job_templates",
                        to="scheduling.cell",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="job_templates",
                        to="quota.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "template",
                "verbose_name_plural": "templates",
                "ordering": ["cell", "tenant", "name"],
            },
        ),
        migrations.AddConstraint(
            model_name="jobtemplate",
            constraint=models.UniqueConstraint(fields=("tenant", "cell", "name"), name="one_template_per_name"),
        ),
        migrations.CreateModel(
            name="JobTemplateVersion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(verbose_name="version")),
                ("content", models.JSONField(verbose_name="content")),
                ("actor", models.CharField(max_length=200, verbose_name="by")),
                ("created_at", models.DateTimeField(verbose_name="created")),
                (
                    "template",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="scheduling.jobtemplate",
                    ),
                ),
            ],
            options={
                "verbose_name": "version of a template",
                "verbose_name_plural": "versions of templates",
                "ordering": ["-version"],
            },
        ),
        migrations.AddConstraint(
            model_name="jobtemplateversion",
            constraint=models.UniqueConstraint(fields=("template", "version"), name="one_template_per_version"),
        ),
    ]
