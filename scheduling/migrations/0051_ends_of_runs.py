"""Jobs store within which time each run of their tasks ends. Jobs that exist already have no value, so the scheduler
does not rely on their ends.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0050_cron_jobs")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="ends_within_s",
            field=models.FloatField(blank=True, null=True, verbose_name="a run ends within, s"),
        ),
    ]
