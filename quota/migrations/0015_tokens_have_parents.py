"""A token records the token that issued it, so that it ends with it. Older tokens have no parent."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0014_sums_of_an_hour_are_exact"),
    ]

    operations = [
        migrations.AddField(
            "token",
            "parent",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="children",
                to="quota.token",
                verbose_name="parent token",
            ),
        ),
    ]
