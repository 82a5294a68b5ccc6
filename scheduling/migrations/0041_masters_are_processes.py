"""Remove the periodic task that started masters. A master is a process of its own now."""

from typing import Any

from django.db import migrations
from django.utils import timezone


def remove(apps: Any, schema_editor: Any) -> None:
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(task="scheduling.masters_ensure").delete()
    # A running beat reads its tasks again.
    changes = apps.get_model("django_celery_beat", "PeriodicTasks").objects
    changes.update_or_create(ident=1, defaults={"last_update": timezone.now()})


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0040_earlier_histories_of_cells"), ("django_celery_beat", "0001_initial")]

    operations = [migrations.RunPython(remove, migrations.RunPython.noop)]
