"""The Celery application of the portal. The command `celery -A portal.celery worker` starts a worker."""

from __future__ import annotations

import gc
import os

from celery import Celery, signals

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.production")

app = Celery("borg")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(related_name="celery_tasks")

# Periodic tasks create many objects that form no cycles, for example when they meter jobs of a large cell. These are
# the thresholds of masters (`scheduling.master`), where they were measured.
GC_THRESHOLDS = (100_000, 50, 100)


@signals.worker_ready.connect
def tune_collector(**_: object) -> None:
    """Configure Python's garbage collector after a worker has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
