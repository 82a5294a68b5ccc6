"""Study cells: copies of cells at one moment, which nobody can change."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0036_the_journal_is_counted")]

    operations = [
        migrations.AddField(
            model_name="cell",
            name="study_of",
            field=models.JSONField(default=None, editable=False, null=True, verbose_name="original cell, if this cell is a copy"),
        ),
    ]
