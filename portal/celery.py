"""The Celery application: `celery -A portal.celery worker`."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.production")

app = Celery("borg")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
