"""Helpers for tests of config files: files, and job files that use them."""

from __future__ import annotations

from typing import Any

from quota.models import Tenant
from quota.vocabulary.permissions import Principal
from scheduling.config_files.files import FileChange
from scheduling.jobs.actions import config_changes
from tests.integration import world


def a_file(principal: Principal, tenant: Tenant, content: bytes = b"color: red\n", **given: Any) -> FileChange:
    """Write a config file, by default `flags`."""
    given.setdefault("name", "flags")
    return config_changes.config_put(principal=principal, tenant=tenant, content=content, **given)


def using(*uses: dict[str, Any], name: str = "web", **changes: Any) -> dict[str, Any]:
    """Return a job file whose tasks use config files. By default, they use the newest version of `flags`."""
    return world.with_task(name, configs=list(uses) or [{"name": "flags", "file": "flags.yaml"}], **changes)
