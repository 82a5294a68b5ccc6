"""`?dry_run=1` on every write: the answer of the real thing, and nothing changed."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.test import Client

from quota.models import Membership, Quota, Record, Tenant, Token
from quota.permissions import Scope, system
from quota.services.access import token_issue
from scheduling import journal
from scheduling.models import JoinToken, Machine
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sre() -> Client:
    cache.clear()
    user = get_user_model().objects.create_user("root", password="x" * 12, is_staff=True, is_superuser=True)
    _, secret = token_issue(principal=system("test"), user=user, name="t", scopes=[s.value for s in Scope])
    return Client(headers={"authorization": f"Bearer {secret}"})


def facts(cell) -> list[object]:
    counted = [model.objects.count() for model in (Tenant, Membership, Quota, Token, JoinToken, Record)]
    return [*counted, journal.newest(cell.id), *Machine.objects.values_list("state", "reason")]


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("post", "cells/cc/machines/m1:drain", {"reason": "disk"}, 200),
        ("post", "cells/cc/machines/m1:drain", {"why": "disk"}, 422),
        ("post", "cells/cc/join-tokens/", {}, 201),
        ("post", "tenants/", {"name": "fresh"}, 201),
        ("post", "tenants/", {"name": "ubar"}, 409),
        ("put", "tenants/ubar/", {"title": "New"}, 200),
        ("put", "tenants/ubar/members/root/", {"role": "viewer"}, 200),
        ("post", "tokens/", {"name": "more"}, 201),
        (
            "post",
            "quota/grants/",
            {"tenant": "ubar", "cell": "cc", "band": "batch", "amounts": {"cpu": 1}},
            201,
        ),
    ],
)
def test_a_rehearsed_write_answers_as_the_real_one_and_changes_nothing(
    sre: Client, settings, method: str, path: str, body: dict, status: int, tmp_path
) -> None:
    settings.BORG_AUTHORITY = str(tmp_path)
    cell = rows.a_cell()
    rows.a_tenant("ubar")
    rows.a_machine(cell)
    before = facts(cell)
    send = getattr(sre, method)
    rehearsed = send(f"/api/v1/{path}?dry_run=1", body, content_type="application/json")
    assert rehearsed.status_code == status, rehearsed.text
    assert facts(cell) == before
    assert "borg_" not in rehearsed.text, "a secret that was never valid was shown"
    real = send(f"/api/v1/{path}", body, content_type="application/json")
    assert real.status_code == status, real.text
    assert (facts(cell) != before) == (status < 300)


def test_a_misspelt_switch_changes_nothing(sre: Client) -> None:
    cell = rows.a_cell()
    before = facts(cell)
    answer = sre.post("/api/v1/tenants/?dry_run=maybe", {"name": "fresh"}, content_type="application/json")
    assert (answer.status_code, "dry_run" in answer.json()["fields"]) == (422, True)
    assert facts(cell) == before
