"""Jobs may have a deadline. The master finds jobs that are overdue with an index."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0044_deleted_cells")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="deadline_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="deadline"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=Q(deadline_at__isnull=False, ended_at__isnull=True),
                fields=["cell", "deadline_at"],
                name="job_by_deadline",
            ),
        ),
    ]
