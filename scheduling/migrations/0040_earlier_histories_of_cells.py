"""A cell that is restored in place begins a new history, which continues the journal and checkpoints of earlier ones."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0039_identities_can_be_erased")]

    operations = [
        migrations.AddField(
            model_name="cell",
            name="earlier_histories",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.UUIDField(), db_default=[], default=list, editable=False, size=None
            ),
        ),
    ]
