"""Updates change canary tasks first, and return to the last good version by themselves."""

import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0048_notices_about_jobs")]

    operations = [
        migrations.AddField(
            model_name="update",
            name="canary",
            field=models.PositiveIntegerField(db_default=0, default=0, verbose_name="canary tasks"),
        ),
        migrations.AddField(
            model_name="update",
            name="healthy_s",
            field=models.FloatField(db_default=0.0, default=0.0, verbose_name="seconds until promotion"),
        ),
        migrations.AddField(
            model_name="update",
            name="by_hand",
            field=models.BooleanField(db_default=False, default=False, verbose_name="promoted by hand"),
        ),
        migrations.AlterField(
            model_name="update",
            name="created_at",
            field=models.DateTimeField(default=django.utils.timezone.now, verbose_name="started"),
        ),
        migrations.AddField(
            model_name="update",
            name="rollback",
            field=models.BooleanField(db_default=False, default=False, verbose_name="rolls back"),
        ),
        migrations.AddField(
            model_name="update",
            name="deadline_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="deadline"),
        ),
        migrations.AlterField(
            model_name="update",
            name="state",
            field=models.CharField(
                choices=[
                    ("open", "open"),
                    ("done", "done"),
                    ("superseded", "superseded"),
                    ("stopped", "stopped"),
                    ("rolled-back", "rolled-back"),
                ],
                default="open",
                max_length=16,
                verbose_name="state",
            ),
        ),
    ]
