"""Config files of tenants, their versions, and which version each task has. Specs and workflows have columns with the
names of the config files that they use.

The columns and their index come first, because they take longest. The tables come last, because they lock the table of
tenants against changes of its rows, which no transaction combines with changes of specs.
"""

import django.contrib.postgres.indexes
import django.core.validators
import django.db.models.deletion
import quota.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0020_metered_hours_have_partitions"),
        ("scheduling", "0067_machine_pools"),
    ]

    operations = [
        migrations.AddField(
            model_name="workflow", name="configs", field=models.JSONField(blank=True, db_default={}, default=dict)
        ),
        migrations.AddField(
            model_name="jobspec", name="configs", field=models.JSONField(blank=True, db_default=[], default=list)
        ),
        migrations.AddIndex(
            model_name="jobspec",
            index=django.contrib.postgres.indexes.GinIndex(
                fields=["configs"], name="spec_by_config_file", condition=models.Q(("configs", []), _negated=True)
            ),
        ),
        migrations.CreateModel(
            name="ConfigFile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
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
                ("newest_version", models.PositiveIntegerField(default=0, verbose_name="newest version")),
                ("created_by", models.CharField(max_length=200, verbose_name="created by")),
                ("created_at", models.DateTimeField(verbose_name="created")),
                ("deleted_at", models.DateTimeField(blank=True, null=True, verbose_name="deleted")),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="config_files",
                        to="quota.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "config file",
                "verbose_name_plural": "config files",
                "ordering": ["tenant", "name"],
            },
        ),
        migrations.CreateModel(
            name="ConfigVersion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(verbose_name="version")),
                ("content", models.TextField(verbose_name="content")),
                ("size_bytes", models.PositiveIntegerField(verbose_name="size in bytes")),
                ("comment", models.CharField(blank=True, max_length=200, verbose_name="comment")),
                ("restored_from", models.PositiveIntegerField(blank=True, null=True, verbose_name="restored from")),
                ("created_by", models.CharField(max_length=200, verbose_name="written by")),
                ("created_at", models.DateTimeField(verbose_name="written")),
                (
                    "file",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="scheduling.configfile",
                    ),
                ),
            ],
            options={
                "verbose_name": "version of a config file",
                "verbose_name_plural": "versions of config files",
                "ordering": ["file", "-version"],
            },
        ),
        migrations.CreateModel(
            name="ConfigDelivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("job_id", models.BigIntegerField(verbose_name="job")),
                ("index", models.PositiveIntegerField(verbose_name="task")),
                ("path", models.CharField(max_length=100, verbose_name="file")),
                ("incarnation", models.PositiveIntegerField(verbose_name="incarnation")),
                ("version", models.PositiveIntegerField(verbose_name="version")),
                ("sent_at", models.DateTimeField(verbose_name="sent")),
                (
                    "file",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="scheduling.configfile",
                    ),
                ),
            ],
            options={
                "verbose_name": "delivery of a config file",
                "verbose_name_plural": "deliveries of config files",
                "ordering": ["file", "job_id", "index", "path"],
            },
        ),
        migrations.AddConstraint(
            model_name="configfile",
            constraint=models.UniqueConstraint(fields=("tenant", "name"), name="one_config_file_per_name"),
        ),
        migrations.AddConstraint(
            model_name="configversion",
            constraint=models.UniqueConstraint(fields=("file", "version"), name="one_content_per_version"),
        ),
        migrations.AddConstraint(
            model_name="configversion",
            constraint=models.CheckConstraint(
                condition=models.Q(version__gt=0), name="versions_of_configs_begin_at_one"
            ),
        ),
        migrations.AddConstraint(
            model_name="configdelivery",
            constraint=models.UniqueConstraint(
                fields=("file", "job_id", "index", "path"), name="one_config_delivery_per_task"
            ),
        ),
    ]
