"""The Celery application: `celery -A portal.celery worker`."""

from __future__ import annotations

import gc
import os

from celery import Celery, signals

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.production")

app = Celery("borg")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(related_name="celery_tasks")

# A master makes tens of thousands of values a second, none of them in cycles: with Python's own thresholds the
# collector takes half of the time of a large commit (DESIGN §3).
GC_THRESHOLDS = (100_000, 50, 100)


@signals.worker_ready.connect
def settle(**_: object) -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
