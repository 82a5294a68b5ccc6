"""What the autoscaler stores about jobs whose limits follow their usage, and its progress in a cell."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0057_locks")]

    operations = [
        migrations.CreateModel(
            name="CellAutoscaling",
            fields=[
                (
                    "cell",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="autoscaling",
                        serialize=False,
                        to="scheduling.cell",
                    ),
                ),
                ("folded_until", models.DateTimeField(null=True)),
                ("turned_at", models.DateTimeField(null=True)),
                ("claimed_until", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="JobAutoscaling",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="autoscaling",
                        serialize=False,
                        to="scheduling.job",
                    ),
                ),
                ("version", models.PositiveIntegerField(default=0)),
                ("rules", models.JSONField(default=dict)),
                ("vertical", models.CharField(blank=True, max_length=16)),
                ("tasks", models.PositiveIntegerField(default=0)),
                ("cpu", models.BigIntegerField(default=0)),
                ("ram", models.BigIntegerField(default=0)),
                ("own_tasks", models.PositiveIntegerField(default=0)),
                ("own_cpu", models.BigIntegerField(default=0)),
                ("own_ram", models.BigIntegerField(default=0)),
                ("limits_held_until", models.DateTimeField(null=True)),
                ("cpu_weights", models.BinaryField(default=b"")),
                ("ram_weights", models.BinaryField(default=b"")),
                ("decayed_at", models.DateTimeField(null=True)),
                ("first_at", models.DateTimeField(null=True)),
                ("wanted_cpu", models.BigIntegerField(null=True)),
                ("wanted_ram", models.BigIntegerField(null=True)),
                ("wanted_since", models.DateTimeField(null=True)),
                ("oom_at", models.DateTimeField(null=True)),
                ("oom_sum", models.FloatField(default=0.0)),
                ("limits_at", models.DateTimeField(null=True)),
                ("limited_code", models.CharField(blank=True, max_length=64)),
                ("limited_detail", models.CharField(blank=True, max_length=500)),
                ("limited_since", models.DateTimeField(null=True)),
                ("retry_at", models.DateTimeField(null=True)),
            ],
        ),
    ]
