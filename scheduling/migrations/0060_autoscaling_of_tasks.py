"""What the autoscaler stores about jobs whose number of tasks follows their load or a schedule."""

from django.db import migrations, models

CONDITIONS = ("failing", "crash-looping", "pending", "deadline-at-risk", "recommendation", "scaling-limited")


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0059_repackings")]

    operations = [
        migrations.AlterField(
            model_name="jobcondition",
            name="condition",
            field=models.CharField(
                choices=[(condition, condition) for condition in CONDITIONS], max_length=32, verbose_name="condition"
            ),
        ),
        migrations.AddField(
            model_name="jobautoscaling",
            name="horizontal",
            field=models.CharField(blank=True, db_default="", default="", max_length=16),
        ),
        migrations.AddField(
            model_name="jobautoscaling", name="tasks_held_until", field=models.DateTimeField(null=True)
        ),
        migrations.AddField(model_name="jobautoscaling", name="needed", field=models.FloatField(null=True)),
        migrations.AddField(model_name="jobautoscaling", name="needed_at", field=models.DateTimeField(null=True)),
        migrations.AddField(
            model_name="jobautoscaling", name="wanted_tasks", field=models.PositiveIntegerField(null=True)
        ),
        migrations.AddField(model_name="jobautoscaling", name="low_since", field=models.DateTimeField(null=True)),
        migrations.AddField(model_name="jobautoscaling", name="low_most", field=models.PositiveIntegerField(null=True)),
        migrations.AddField(
            model_name="jobautoscaling", name="scheduled", field=models.PositiveIntegerField(null=True)
        ),
        migrations.AddField(model_name="jobautoscaling", name="schedule_at", field=models.DateTimeField(null=True)),
        migrations.AddField(model_name="jobautoscaling", name="tasks_at", field=models.DateTimeField(null=True)),
    ]
