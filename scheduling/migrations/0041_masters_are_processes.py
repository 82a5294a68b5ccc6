"""Remove the periodic task that started masters. A master is a process of its own now."""

from typing import Any

from django.db import migrations


def remove(apps: Any, schema_editor: Any) -> None:
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(task="scheduling.masters_ensure").delete()


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0040_earlier_histories_of_cells"), ("django_celery_beat", "0001_initial")]

    operations = [migrations.RunPython(remove, migrations.RunPython.noop)]
