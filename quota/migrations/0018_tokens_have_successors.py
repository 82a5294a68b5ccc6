"""A rotated token records the token that replaces it."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("quota", "0017_metered_hours_by_cell_and_hour")]

    operations = [
        migrations.AddField(
            "token",
            "successor",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="quota.token",
                verbose_name="replaced by",
            ),
        )
    ]
