"""Machines are counted by state and rack without reading their rows. The index replaces the one of the cell."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0030_job_names_are_found_at_any_age")]

    operations = [
        migrations.AddIndex("machine", models.Index(fields=["cell", "state", "rack"], name="machine_by_state")),
        migrations.AlterField(
            "machine",
            "cell",
            models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="machines",
                to="scheduling.cell",
            ),
        ),
    ]
