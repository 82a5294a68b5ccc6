"""Updates change canary tasks first, and return to the last good version by themselves."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0047_restarts_and_pauses")]

    operations = [
        migrations.AddField(
            model_name="update",
            name="canary",
            field=models.PositiveIntegerField(db_default=0, default=0, verbose_name="canary tasks"),
        ),
        migrations.AddField(
            model_name="update",
            name="canary_s",
            field=models.FloatField(blank=True, null=True, verbose_name="seconds until promotion"),
        ),
        migrations.AddField(
            model_name="update",
            name="canary_up_since",
            field=models.DateTimeField(blank=True, null=True, verbose_name="canary tasks up since"),
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
