"""Settings of the tests: real PostgreSQL and Redis, started by `tests.engines`."""

from __future__ import annotations

from portal.settings.base import *  # noqa: F403
from portal.settings.base import DATABASES

SECRET_KEY = "only-for-tests-" + "x" * 50
ALLOWED_HOSTS = ["*"]
DATABASES["default"]["CONN_MAX_AGE"] = 0
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
CELERY_TASK_ALWAYS_EAGER = False
