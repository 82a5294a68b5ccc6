"""Statistics of the journal per hour, and how far they have read it."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0035_saved_queries")]

    operations = [
        migrations.CreateModel(
            name="StatisticsReader",
            fields=[
                (
                    "cell",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="statistics_reader",
                        serialize=False,
                        to="scheduling.cell",
                    ),
                ),
                ("revision", models.BigIntegerField(default=0)),
                ("state", models.BinaryField(default=b"")),
                ("read_at", models.DateTimeField(null=True)),
            ],
            options={"verbose_name": "progress of the statistics", "verbose_name_plural": "progress of the statistics"},
        ),
        migrations.CreateModel(
            name="JournalTally",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("hour", models.DateTimeField(verbose_name="hour")),
                ("figure", models.CharField(max_length=32, verbose_name="statistic")),
                ("prod", models.BooleanField(verbose_name="prod tasks only")),
                ("label", models.CharField(blank=True, max_length=200, verbose_name="label of the statistic")),
                ("number", models.BigIntegerField(verbose_name="number of occurrences")),
                ("total", models.FloatField(verbose_name="sum of the values")),
                (
                    "buckets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), size=None, verbose_name="histogram of the values"
                    ),
                ),
                (
                    "cell",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="scheduling.cell",
                    ),
                ),
            ],
            options={
                "verbose_name": "hourly statistic of the journal",
                "verbose_name_plural": "hourly statistics of the journal",
                "ordering": ["cell", "hour", "figure", "prod", "label"],
                "constraints": [
                    models.UniqueConstraint(fields=("cell", "hour", "figure", "prod", "label"), name="one_tally_per_hour")
                ],
            },
        ),
    ]
