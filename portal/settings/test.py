"""Settings of the tests. `tests.engines` starts a real PostgreSQL and a real Redis for them."""

from __future__ import annotations

from portal.settings import environment as env
from portal.settings.base import *  # noqa: F403
from portal.settings.base import BORG_DNS_SNAPSHOT, DATABASES, INSTALLED_APPS, OIDC_APP, STORAGES

SECRET_KEY = "only-for-tests-" + "x" * 50
BORG_SECRET_KEYS = "b25seS1mb3ItdGVzdHMtb2Ytc2VjcmV0cy14eHh4eHg="  # noqa: S105 - only for tests
ALLOWED_HOSTS = ["*"]
# `tests.engines` has migrated this database.
DATABASES["default"]["TEST"] = {"TEMPLATE": DATABASES["default"]["NAME"]}
INSTALLED_APPS.append(OIDC_APP)
BORG_SRE_SECOND_FACTOR = False  # most tests sign in with a password only
# Tests share a home, but each test has its own database. So a test stores names only if it sets a folder.
BORG_DNS_SNAPSHOT = BORG_DNS_SNAPSHOT if env.text("BORG_DNS_SNAPSHOT") else None
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Serve static files from the source, so that nothing has to be collected before a test.
STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
# The process of past moments would not see the transaction of a test.
BORG_MOMENT_PROCESS = False
STATIC_ROOT = None  # type: ignore[assignment]
WHITENOISE_USE_FINDERS = True
# Look up static files per request. Otherwise each `Client` of a test would list all files first.
WHITENOISE_AUTOREFRESH = True
