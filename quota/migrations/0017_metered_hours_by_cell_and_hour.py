"""Metered hours are found by cell and hour. The index replaces the one of the tenant: `metered_by_tenant` begins with it.

Readers and writers go on during the first step. During the second one, readers go on and writers wait, some seconds per
million rows.
"""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # for CONCURRENTLY; both steps can be repeated
    dependencies = [("quota", "0016_expired_quota_by_its_name")]

    operations = [
        # Without SQL of its own, AlterField would also check the foreign key of every row again.
        migrations.RunSQL(
            'DROP INDEX CONCURRENTLY IF EXISTS "quota_meteredhour_tenant_id_84d26c28"',
            'CREATE INDEX IF NOT EXISTS "quota_meteredhour_tenant_id_84d26c28" ON quota_meteredhour (tenant_id)',
            state_operations=[
                migrations.AlterField(
                    "meteredhour",
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="metered",
                        to="quota.tenant",
                    ),
                ),
            ],
        ),
        migrations.AddIndex("meteredhour", models.Index(fields=["cell", "hour"], name="metered_by_hour")),
    ]
