"""Specs have a column with the names of the secrets that they use, and an index finds the specs that use a secret.

This is a migration of its own, because its transaction locks only the table of specs.
"""

import django.contrib.postgres.indexes
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0055_secrets")]

    operations = [
        migrations.AddField(
            model_name="jobspec", name="secrets", field=models.JSONField(blank=True, db_default=[], default=list)
        ),
        migrations.AddIndex(
            model_name="jobspec",
            index=django.contrib.postgres.indexes.GinIndex(
                fields=["secrets"], name="spec_by_secret", condition=models.Q(("secrets", []), _negated=True)
            ),
        ),
    ]
