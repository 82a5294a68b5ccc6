"""Remove the periodic task that dropped usage. The archiver drops it now, after it has copied it."""

from typing import Any

from django.db import migrations


def remove(apps: Any, schema_editor: Any) -> None:
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(task="scheduling.usage_drop_old").delete()


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0033_the_manifest_of_the_archive"),
        ("django_celery_beat", "0001_initial"),
    ]

    operations = [migrations.RunPython(remove, migrations.RunPython.noop)]
