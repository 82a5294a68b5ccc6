"""Standby masters record that they follow a cell."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0042_tenants_of_archived_hours")]

    operations = [
        migrations.CreateModel(
            name="Standby",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("scheduler", models.CharField(max_length=32, verbose_name="scheduler")),
                ("holder", models.CharField(max_length=200, verbose_name="process")),
                ("revision", models.BigIntegerField(verbose_name="revision of its state")),
                ("seen_at", models.DateTimeField(verbose_name="last seen")),
                (
                    "cell",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="standbys", to="scheduling.cell"
                    ),
                ),
            ],
            options={
                "verbose_name": "standby master",
                "verbose_name_plural": "standby masters",
                "constraints": [
                    models.UniqueConstraint(fields=("cell", "scheduler", "holder"), name="one_row_per_standby")
                ],
            },
        )
    ]
