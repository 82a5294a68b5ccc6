"""Tests of the names that a shell offers after the tab key."""

from __future__ import annotations

from typing import Any

import pytest

from portal.cli import completions
from portal.cli.profiles import Profile

PROFILE = Profile("default", url="http://portal", cell="cc", tenant="ubar")
ROWS = [{"name": "web", "id": 71}, {"name": "web", "id": 72}, {"name": "old", "id": 8}]


@pytest.mark.parametrize(
    ("names", "incomplete", "offered", "path", "tenant"),
    [
        (completions._of_kind("cron-jobs"), "w", ["web"], "/api/v1/cells/cc/cron-jobs/", "ubar"),
        (completions._of_kind("services"), "aa/ads/w", ["aa/ads/web"], "/api/v1/cells/aa/services/", "ads"),
        (completions._of_tenant("configs"), "o", ["old"], "/api/v1/tenants/ubar/configs/", None),
        (completions._pools, "", ["web", "web", "old"], "/api/v1/cells/cc/pools/", None),
        (completions._credits, "7", ["71", "72"], "/api/v1/quota/credits/", None),
    ],
)
def test_names_that_begin_with_the_text_are_offered(names, incomplete, offered, path, tenant) -> None:
    asked: list[tuple[str, Any]] = []

    def get(path: str, **given: Any) -> dict[str, Any]:
        asked.append((path, given.get("tenant")))
        return {"results": ROWS}

    assert list(names(get, PROFILE, incomplete)) == offered
    assert asked == [(path, tenant)]
