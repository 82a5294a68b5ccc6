"""Ranges of priority bands never overlap."""

from django.db import migrations

ADD = """
ALTER TABLE quota_priorityband ADD CONSTRAINT bands_never_overlap
    EXCLUDE USING gist (int4range(low, high, '[]') WITH &&)
"""
DROP = "ALTER TABLE quota_priorityband DROP CONSTRAINT bands_never_overlap"


class Migration(migrations.Migration):
    dependencies = [("quota", "0001_tenants_bands_and_quota")]

    operations = [migrations.RunSQL(ADD, DROP)]
