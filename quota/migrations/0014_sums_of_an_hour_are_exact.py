"""Sums of an hour were kept as 2⁶³−1 where they were larger."""

from __future__ import annotations

from django.db import migrations

import quota.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0013_orders_that_are_open"),
    ]

    operations = [
        migrations.AlterField("meteredhour", "limit", quota.models.fields.WideVectorField(verbose_name="limit")),
        migrations.AlterField("meteredhour", "reserved", quota.models.fields.WideVectorField(verbose_name="reserved")),
        migrations.AlterField("meteredhour", "used", quota.models.fields.WideVectorField(verbose_name="used")),
    ]
