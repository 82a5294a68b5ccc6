"""Secrets of tenants, their versions and their grants."""

import django.core.validators
import django.db.models.deletion
import quota.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0020_metered_hours_have_partitions"),
        ("scheduling", "0054_workflows"),
    ]

    operations = [
        migrations.CreateModel(
            name="Secret",
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
                        related_name="secrets",
                        to="quota.tenant",
                    ),
                ),
            ],
            options={"verbose_name": "secret", "verbose_name_plural": "secrets", "ordering": ["tenant", "name"]},
        ),
        migrations.CreateModel(
            name="SecretGrant",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("jobs", models.CharField(max_length=64, verbose_name="jobs")),
                ("cell", models.CharField(blank=True, max_length=63, verbose_name="cell")),
                ("created_by", models.CharField(max_length=200, verbose_name="granted by")),
                ("created_at", models.DateTimeField(verbose_name="granted")),
                (
                    "secret",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to="scheduling.secret",
                    ),
                ),
            ],
            options={
                "verbose_name": "grant of a secret",
                "verbose_name_plural": "grants of secrets",
                "ordering": ["secret", "jobs", "cell"],
            },
        ),
        migrations.CreateModel(
            name="SecretVersion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(verbose_name="version")),
                ("key_id", models.CharField(db_index=True, max_length=16, verbose_name="id of the key")),
                ("sealed", models.BinaryField()),
                ("fingerprint", models.CharField(max_length=8, verbose_name="fingerprint")),
                ("size_bytes", models.PositiveIntegerField(verbose_name="size in bytes")),
                ("is_text", models.BooleanField(verbose_name="text")),
                ("created_by", models.CharField(max_length=200, verbose_name="set by")),
                ("created_at", models.DateTimeField(verbose_name="set")),
                (
                    "secret",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="scheduling.secret",
                    ),
                ),
            ],
            options={
                "verbose_name": "version of a secret",
                "verbose_name_plural": "versions of secrets",
                "ordering": ["secret", "-version"],
            },
        ),
        migrations.AddConstraint(
            model_name="secret",
            constraint=models.UniqueConstraint(fields=("tenant", "name"), name="one_secret_per_name"),
        ),
        migrations.AddConstraint(
            model_name="secretgrant",
            constraint=models.UniqueConstraint(fields=("secret", "jobs", "cell"), name="one_grant_per_jobs"),
        ),
        migrations.AddConstraint(
            model_name="secretversion",
            constraint=models.UniqueConstraint(fields=("secret", "version"), name="one_value_per_version"),
        ),
        migrations.AddConstraint(
            model_name="secretversion",
            constraint=models.CheckConstraint(
                condition=models.Q(version__gt=0), name="versions_of_secrets_begin_at_one"
            ),
        ),
    ]
