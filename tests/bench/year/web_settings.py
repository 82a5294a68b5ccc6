"""Settings of production for the web process of the simulated year, which needs no collected static files."""

from __future__ import annotations

from portal.settings.production import *  # noqa: F403
from portal.settings.production import STORAGES

STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
BORG_SRE_SECOND_FACTOR = False  # the sessions of the bench are made without sign-in
