"""Half of each page of jobs is left free for new versions of its rows: each placement changes the counters of a job.

Two indexes are removed that other indexes replace. The index of live names begins with the tenant, whose live jobs are
counted for each submission.
"""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

LEAVE_FREE = "ALTER TABLE scheduling_job SET (fillfactor = 50)"
FILL = "ALTER TABLE scheduling_job RESET (fillfactor)"


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0028_submissions_have_keys")]

    operations = [
        migrations.RunSQL(LEAVE_FREE, FILL),
        migrations.AlterField(
            "job",
            "cell",
            models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="jobs",
                to="scheduling.cell",
            ),
        ),
        migrations.AddIndex(
            "job",
            models.Index(condition=Q(alloc_set__isnull=False), fields=["alloc_set"], name="job_by_alloc_set"),
        ),
        migrations.AlterField(
            "job",
            "alloc_set",
            models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="inner_jobs",
                to="scheduling.job",
                verbose_name="inside alloc set",
            ),
        ),
        migrations.RemoveConstraint("job", "one_live_job_per_name"),
        migrations.AddConstraint(
            "job",
            models.UniqueConstraint(
                condition=~Q(state="dead"), fields=("tenant", "cell", "name"), name="one_live_job_per_name"
            ),
        ),
    ]
