"""Reclamation asks every few seconds which jobs switched it off: few do."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0005_fewer_task_indexes")]

    operations = [
        migrations.AddIndex(
            model_name="jobspec",
            index=models.Index(
                condition=models.Q(("spec__reclamation", False)), fields=["job"], name="spec_not_reclaimed"
            ),
        ),
    ]
