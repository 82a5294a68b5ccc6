"""Helpers for tests of secrets: keys, secrets and job files that use them."""

from __future__ import annotations

import base64
from typing import Any

from quota.models import Tenant
from quota.vocabulary.permissions import Principal
from scheduling.models import Secret
from scheduling.secrets import secrets
from tests.integration import world

OLD, NEW = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))


def a_secret(owner: Principal, tenant: Tenant, name: str = "db", value: bytes = b"hunter2", *jobs: str) -> Secret:
    """Set a secret, grant it to jobs, and return it."""
    done = secrets.secret_set(principal=owner, tenant=tenant, name=name, value=value)
    for one in jobs:
        secrets.secret_grant(principal=owner, tenant=tenant, name=name, jobs=one)
    return done.secret


def using(*uses: dict[str, Any], name: str = "web", **changes: Any) -> dict[str, Any]:
    """Return a job file whose tasks use secrets. By default, they use the newest version of `db` as a file."""
    return world.with_task(name, secrets=list(uses) or [{"name": "db", "file": "password"}], **changes)
