"""Settings of all server processes, on a laptop and in production."""

from __future__ import annotations

from portal.settings import environment as env
from portal.settings.base import *  # noqa: F403
from portal.settings.base import SECRET_KEY
from portal.settings.checks import KEY_CURE

if not SECRET_KEY:
    env.exit_with(f"BORG_SECRET_KEY is not set: {KEY_CURE}.")
