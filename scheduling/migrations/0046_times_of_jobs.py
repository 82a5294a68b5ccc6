"""Jobs may have a time of their start, a deadline, time limits and a time to live after their end. Indexes find the jobs
that are overdue, and the ended jobs that leave PostgreSQL early.
"""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0045_sites_and_clusters")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="max_run_s",
            field=models.FloatField(blank=True, null=True, verbose_name="time limit of tasks, s"),
        ),
        migrations.AddField(
            model_name="job",
            name="start_after",
            field=models.DateTimeField(blank=True, null=True, verbose_name="starts after"),
        ),
        migrations.AddField(
            model_name="job",
            name="deadline_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="deadline"),
        ),
        migrations.AddField(
            model_name="job",
            name="ttl_after_end_s",
            field=models.FloatField(blank=True, null=True, verbose_name="time to live after the end, s"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=Q(deadline_at__isnull=False, ended_at__isnull=True),
                fields=["cell", "deadline_at"],
                name="job_by_deadline",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=Q(ended_at__isnull=False, ttl_after_end_s__isnull=False),
                fields=["cell", "ended_at"],
                name="job_by_end_with_ttl",
            ),
        ),
    ]
