"""Attributes that SREs set on machines, and machine pools, which may be dedicated to tenants."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import quota.models.fields


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0066_rejections_of_numbers_of_tasks")]

    operations = [
        migrations.AddField(
            model_name="machine",
            name="set_attributes",
            field=models.JSONField(
                blank=True, default=dict, db_default={}, verbose_name="attributes that SREs have set"
            ),
        ),
        migrations.AddField(
            model_name="machine",
            name="hidden_attributes",
            field=models.JSONField(blank=True, default=dict, db_default={}),
        ),
        migrations.AddField(
            model_name="machine",
            name="assigned_pool",
            field=models.CharField(
                blank=True, default="", db_default="", max_length=63, verbose_name="pool by assignment"
            ),
        ),
        migrations.AddIndex(
            model_name="machine",
            index=models.Index(
                fields=["cell"], name="machine_in_pool", condition=models.Q(attributes__has_key="pool")
            ),
        ),
        migrations.CreateModel(
            name="Pool",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", quota.models.fields.DnsLabelField(verbose_name="name")),
                ("description", models.CharField(blank=True, max_length=300, verbose_name="description")),
                ("selector", models.CharField(blank=True, max_length=2000, verbose_name="selector of its machines")),
                (
                    "tenants",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=63),
                        blank=True,
                        default=list,
                        size=None,
                        verbose_name="tenants",
                    ),
                ),
                ("dedicated", models.BooleanField(default=False, verbose_name="only these tenants run there")),
                (
                    "use",
                    models.CharField(
                        choices=[("may", "may"), ("prefer", "prefer"), ("must", "must")],
                        default="may",
                        max_length=16,
                        verbose_name="how its tenants use it",
                    ),
                ),
                (
                    "others",
                    models.CharField(
                        choices=[("stay", "stay"), ("leave", "leave")],
                        default="stay",
                        max_length=16,
                        verbose_name="running tasks of other tenants",
                    ),
                ),
                ("changed_by", models.CharField(max_length=200, verbose_name="changed by")),
                ("changed_at", models.DateTimeField(verbose_name="changed")),
                (
                    "cell",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="pools",
                        to="scheduling.cell",
                    ),
                ),
            ],
            options={
                "verbose_name": "machine pool",
                "verbose_name_plural": "machine pools",
                "ordering": ["cell", "name"],
                "constraints": [models.UniqueConstraint(fields=("cell", "name"), name="one_pool_per_name")],
            },
        ),
    ]
