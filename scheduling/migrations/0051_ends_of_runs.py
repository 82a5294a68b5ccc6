"""Jobs store within which time each run of their tasks ends, and an index finds the live runs of a cron job. Jobs that
exist already have no value, so the scheduler does not rely on their ends.

This is a migration of its own, because its transaction locks only the table of jobs. Together with the foreign keys of
cron jobs, it could deadlock with a master, which locks the cell first.
"""

from django.db import migrations, models

RUN_NAME = "^(.+)-[0-9]{8}t[0-9]{4}(?:[0-9]{2})?z$"


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0050_cron_jobs")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="ends_within_s",
            field=models.FloatField(blank=True, null=True, verbose_name="a run ends within, s"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                models.F("cell"),
                models.F("tenant"),
                models.Func(models.F("name"), models.Value(RUN_NAME), function="SUBSTRING"),
                name="job_by_cron_job",
                condition=models.Q(models.Q(("state", "dead"), _negated=True), ("name__regex", RUN_NAME)),
            ),
        ),
    ]
