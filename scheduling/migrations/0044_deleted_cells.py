"""Cells can be deleted. The row of a deleted cell stays, so that its history can be read."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0043_standby_masters")]

    operations = [
        migrations.AddField(
            model_name="cell",
            name="deleted_at",
            field=models.DateTimeField(default=None, editable=False, null=True, verbose_name="deleted"),
        ),
        migrations.AddField(
            model_name="cell",
            name="deleted_name",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                max_length=63,
                verbose_name="name before the deletion",
            ),
        ),
        migrations.AddField(
            model_name="cell",
            name="own_folder",
            field=models.CharField(blank=True, db_default="", default="", editable=False, max_length=80),
        ),
    ]
