"""Settings of every process that serves a cell, on a laptop and in production alike."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from portal.settings.base import *  # noqa: F403
from portal.settings.base import SECRET_KEY

if len(SECRET_KEY) < 50:
    raise ImproperlyConfigured(
        "BORG_SECRET_KEY is missing or shorter than 50 characters; make one with "
        "python -c 'import secrets; print(secrets.token_urlsafe(64))'"
    )
