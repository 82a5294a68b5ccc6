"""A client's own key of a submission: the same key of a tenant makes one job. No table is rewritten."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0027_failing_jobs")]

    operations = [
        migrations.AddField(
            "job",
            "key",
            models.CharField(blank=True, db_default="", default="", max_length=64, verbose_name="idempotency key"),
        ),
        migrations.AddConstraint(
            "job",
            models.UniqueConstraint(
                condition=~Q(key=""), fields=("cell", "tenant", "key"), name="one_job_per_tenant_and_key"
            ),
        ),
    ]
