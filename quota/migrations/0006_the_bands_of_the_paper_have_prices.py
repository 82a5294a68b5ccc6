"""What the paper's lower bands cost and how far they are over-sold, where nobody has said so yet.

The figures are `quota.vocabulary.bands.DEFAULT_FACTORS` as of this day.
"""

from django.db import migrations

FACTORS = {"monitoring": (1500, 1000), "production": (1000, 1000), "batch": (400, 1500), "best-effort": (150, 2000)}


def set_factors(apps, schema_editor):
    bands = apps.get_model("quota", "PriorityBand").objects.using(schema_editor.connection.alias)
    for name, (price, oversell) in FACTORS.items():
        rows = bands.filter(name=name, price_milli=1000, oversell_milli=1000)
        rows.filter(prod=False).update(price_milli=price, oversell_milli=oversell)
        rows.filter(prod=True).update(price_milli=price)


class Migration(migrations.Migration):
    dependencies = [("quota", "0005_the_ledger_is_append_only")]

    operations = [migrations.RunPython(set_factors, migrations.RunPython.noop)]
