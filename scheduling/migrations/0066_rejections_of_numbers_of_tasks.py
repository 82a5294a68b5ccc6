"""Rejected changes of the number of a job's tasks are stored apart from those of its limits. The newest update of a job has an
index.
"""

from django.db import migrations, models

TEXT = {"blank": True, "default": "", "db_default": ""}


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0065_stopped_jobs_of_services")]

    operations = [
        migrations.AddIndex(
            model_name="update", index=models.Index(fields=["job", "-id"], name="newest_update_of_job")
        ),
        migrations.AddField(
            model_name="jobautoscaling", name="limited_of", field=models.CharField(max_length=16, **TEXT)
        ),
        migrations.AddField(
            model_name="jobautoscaling", name="tasks_limited_code", field=models.CharField(max_length=64, **TEXT)
        ),
        migrations.AddField(
            model_name="jobautoscaling", name="tasks_limited_detail", field=models.CharField(max_length=500, **TEXT)
        ),
        migrations.AddField(
            model_name="jobautoscaling", name="tasks_limited_since", field=models.DateTimeField(null=True)
        ),
        migrations.AddField(model_name="jobautoscaling", name="tasks_retry_at", field=models.DateTimeField(null=True)),
    ]
