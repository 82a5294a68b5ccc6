"""Maintenance windows of machines, racks and power domains. A drain may belong to one."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0063_keys_of_lock_sessions")]

    operations = [
        migrations.CreateModel(
            name="MaintenanceWindow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "machines",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=63),
                        blank=True,
                        default=list,
                        size=None,
                        verbose_name="machines",
                    ),
                ),
                ("rack", models.CharField(blank=True, max_length=63, verbose_name="rack")),
                ("power_domain", models.CharField(blank=True, max_length=63, verbose_name="power domain")),
                ("starts_at", models.DateTimeField(verbose_name="starts")),
                ("ends_at", models.DateTimeField(verbose_name="ends")),
                (
                    "lead_s",
                    models.FloatField(blank=True, null=True, verbose_name="seconds of draining before the start"),
                ),
                (
                    "break_budgets",
                    models.BooleanField(
                        default=False, verbose_name="at the start, evict despite disruption budgets"
                    ),
                ),
                ("reason", models.CharField(max_length=300, verbose_name="reason")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("planned", "planned"),
                            ("draining", "draining"),
                            ("ended", "ended"),
                            ("cancelled", "cancelled"),
                        ],
                        default="planned",
                        max_length=16,
                        verbose_name="state",
                    ),
                ),
                ("detail", models.CharField(blank=True, max_length=500, verbose_name="detail")),
                ("asked_by", models.CharField(max_length=200, verbose_name="requested by")),
                ("changed_by", models.CharField(blank=True, max_length=200, verbose_name="changed by")),
                ("created_at", models.DateTimeField(verbose_name="requested")),
                ("drains_at", models.DateTimeField(blank=True, null=True, verbose_name="drains began")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended")),
                (
                    "returned",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), blank=True, default=list, size=None
                    ),
                ),
                (
                    "cell",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="maintenance_windows",
                        to="scheduling.cell",
                    ),
                ),
            ],
            options={
                "verbose_name": "maintenance window",
                "verbose_name_plural": "maintenance windows",
                "ordering": ["-starts_at", "-id"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ("planned", "draining"))),
                        fields=["cell"],
                        name="open_window_by_cell",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("ends_at__gt", models.F("starts_at"))), name="window_ends_after_its_start"
                    )
                ],
            },
        ),
        migrations.AddField(
            model_name="drain",
            name="window",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="drains",
                to="scheduling.maintenancewindow",
                verbose_name="maintenance window",
            ),
        ),
    ]
