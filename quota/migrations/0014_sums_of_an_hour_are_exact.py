"""Sums of an hour were kept as 2⁶³−1 where they were larger.

One statement for three columns: each would write the whole table anew, and hold up whoever meters or charges meanwhile.
"""

from __future__ import annotations

from django.db import migrations

import quota.models.fields

_COLUMNS = ('"limit"', "reserved", "used")


def _all_as(kind: str) -> str:
    parts = ", ".join(f"ALTER COLUMN {column} TYPE {kind}[] USING {column}::{kind}[]" for column in _COLUMNS)
    return f"ALTER TABLE quota_meteredhour {parts}"


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0013_orders_that_are_open"),
    ]

    operations = [
        migrations.RunSQL(
            _all_as("numeric(30, 0)"),
            _all_as("bigint"),
            state_operations=[
                migrations.AlterField(
                    "meteredhour", "limit", quota.models.fields.WideVectorField(verbose_name="requested resources")
                ),
                migrations.AlterField(
                    "meteredhour", "reserved", quota.models.fields.WideVectorField(verbose_name="reserved resources")
                ),
                migrations.AlterField(
                    "meteredhour", "used", quota.models.fields.WideVectorField(verbose_name="used resources")
                ),
            ],
        )
    ]
