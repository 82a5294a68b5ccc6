"""A table that `/readyz` writes to. Unlogged, because nothing in it has to survive, and stored uncompressed."""

from django.db import migrations

_MAKE = """
CREATE UNLOGGED TABLE portal_write_probe (filling text NOT NULL);
ALTER TABLE portal_write_probe ALTER COLUMN filling SET STORAGE PLAIN;
"""


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [migrations.RunSQL(_MAKE, "DROP TABLE portal_write_probe")]
