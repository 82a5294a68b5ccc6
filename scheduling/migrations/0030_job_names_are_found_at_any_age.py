"""Jobs are found by tenant and name without reading all jobs that ended. The index replaces the one of the tenant."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0029_jobs_are_counted_in_place")]

    operations = [
        migrations.AddIndex("job", models.Index(fields=["tenant", "name"], name="job_by_name")),
        migrations.AlterField(
            "job",
            "tenant",
            models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="jobs",
                to="quota.tenant",
            ),
        ),
    ]
