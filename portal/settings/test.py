"""Settings of the tests: real PostgreSQL and Redis, started by `tests.engines`."""

from __future__ import annotations

from portal.settings import environment as env
from portal.settings.base import *  # noqa: F403
from portal.settings.base import BORG_DNS_SNAPSHOT, DATABASES, STORAGES

SECRET_KEY = "only-for-tests-" + "x" * 50
ALLOWED_HOSTS = ["*"]
DATABASES["default"]["CONN_MAX_AGE"] = 0
# Tests share a home, but each has its own database. So a test keeps names only if it asks for a folder.
BORG_DNS_SNAPSHOT = BORG_DNS_SNAPSHOT if env.text("BORG_DNS_SNAPSHOT") else None
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Serve static files from the source, so that nothing has to be collected before a test.
STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
STATIC_ROOT = None  # type: ignore[assignment]
WHITENOISE_USE_FINDERS = True
# Look static files up per request. Otherwise each `Client` of a test would list all files first.
WHITENOISE_AUTOREFRESH = True
CELERY_TASK_ALWAYS_EAGER = False
