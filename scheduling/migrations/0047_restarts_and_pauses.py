"""Updates record which placed tasks they restart without another spec, and since when they are paused."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0046_times_of_jobs")]

    operations = [
        migrations.AddField(
            model_name="update", name="restarts", field=models.JSONField(blank=True, db_default=[], default=list)
        ),
        migrations.AddField(
            model_name="update",
            name="paused_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="paused"),
        ),
    ]
