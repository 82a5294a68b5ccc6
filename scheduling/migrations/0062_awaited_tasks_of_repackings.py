"""Steps of re-packings store which tasks were up when they began."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0061_rates_of_disruptions")]

    operations = [
        migrations.AddField(
            model_name="repackingstep",
            name="awaited",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(), blank=True, db_default=[], default=list, size=None
            ),
        ),
    ]
