"""What was granted before there was a calendar was granted whatever the cell had: it takes nothing from what is sold."""

from django.db import migrations


def mark(apps, schema_editor):
    apps.get_model("quota", "Quota").objects.filter(order=None).update(beyond_capacity=True)


class Migration(migrations.Migration):

    dependencies = [
        ("quota", "0011_lapses"),
    ]

    operations = [migrations.RunPython(mark, migrations.RunPython.noop)]
