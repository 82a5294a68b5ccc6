"""Jobs may limit how many of their tasks are disrupted within a window of time. A small table counts the disruptions."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0060_autoscaling_of_tasks")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="max_disruptions",
            field=models.PositiveIntegerField(db_default=0, default=0, verbose_name="limit on disruptions"),
        ),
        migrations.AddField(
            model_name="job",
            name="disruption_window_s",
            field=models.FloatField(db_default=3600.0, default=3600.0, verbose_name="window of this limit, s"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=Q(max_disruptions__gt=0, ended_at__isnull=True),
                fields=["cell"],
                name="job_with_disruption_rate",
            ),
        ),
        migrations.CreateModel(
            name="DisruptionCount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("began_at", models.DateTimeField(verbose_name="slot")),
                ("at", models.DateTimeField(verbose_name="last disruption")),
                ("number", models.PositiveIntegerField(verbose_name="disrupted tasks")),
                (
                    "job",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="disruption_counts",
                        to="scheduling.job",
                    ),
                ),
            ],
            options={"verbose_name": "disruptions of a job", "verbose_name_plural": "disruptions of jobs"},
        ),
        migrations.AddConstraint(
            model_name="disruptioncount",
            constraint=models.UniqueConstraint(fields=("job", "began_at"), name="one_disruption_count_per_slot"),
        ),
    ]
