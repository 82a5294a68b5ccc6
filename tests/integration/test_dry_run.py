"""Tests of `?dry_run=1` on every write: the answer is that of the real write, and nothing changes."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.db import transaction
from django.test import Client

from quota import clock
from quota.admission import published_capacity
from quota.billing.ledger import budget_grant
from quota.models import (
    Account,
    ApprovalRule,
    Capability,
    Invitation,
    Membership,
    Notice,
    Order,
    PriceList,
    Quota,
    Quote,
    Record,
    ServiceAccount,
    Tenant,
    Token,
)
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import GENERAL_SCOPES, system
from scheduling.journal import journal
from scheduling.models import JoinToken, Machine
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sre() -> Client:
    cache.clear()
    user = get_user_model().objects.create_user("root", password="x" * 12, is_staff=True, is_superuser=True)
    _, secret = token_issue(principal=system("test"), user=user, name="t", scopes=[s.value for s in GENERAL_SCOPES])
    return Client(headers={"authorization": f"Bearer {secret}"})


ORDER = {
    "tenant": "ubar",
    "cell": "cc",
    "band": "batch",
    "amounts": {"cpu": 1},
    "ends_at": (clock.now() + dt.timedelta(days=3)).replace(microsecond=0).isoformat(),
}


def facts(cell) -> list[object]:
    kept = (
        Account,
        ApprovalRule,
        Order,
        Tenant,
        Membership,
        Quota,
        Token,
        JoinToken,
        Record,
        PriceList,
        Quote,
        Capability,
        Invitation,
        Notice,
        ServiceAccount,
    )
    counted = [model.objects.count() for model in kept]
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
        ("post", "notices/channels/", {"tenant": "ubar", "kind": "email", "target": "x@ubar.example"}, 201),
        ("post", "tenants/", {"name": "team", "parent": "ubar", "time_zone": "Asia/Tokyo"}, 201),
        ("post", "tenants/ubar/move/", {"parent": "org"}, 200),
        ("post", "tenants/ubar/invitations/", {"email": "ann@example.org", "role": "viewer"}, 201),
        ("post", "tenants/ubar/service-accounts/", {"name": "ci", "role": "operator"}, 201),
        ("post", "capabilities/", {"user": "root", "kind": "shell", "reason": "on call"}, 201),
        ("put", "quota/bands/batch/", {"low": 101, "high": 119, "prod": False, "preempts_within": True}, 200),
        ("post", "quota/prices/", {"cell": "cc", "base": {"cpu": 1}}, 201),
        ("post", "quota/prices/what-if/", {"cell": "cc", "base": {"cpu": 1}}, 200),
        (
            "post",
            "quota/quotes/",
            {"tenant": "ubar", "cell": "cc", "band": "batch", "amounts": {"cpu": 1}, "ends_at": "2999-01-01T00:00Z"},
            201,
        ),
        ("post", "quota/orders/", ORDER, 201),
        ("post", "quota/orders/", {**ORDER, "amounts": {"cpu": 10**9}}, 422),
        ("put", "quota/markets/cc/", {"headroom_milli": 7}, 200),
        ("put", "quota/rules/7/", {"approver": "sre"}, 200),
        ("post", "quota/grants/", {"tenant": "ubar", "cell": "cc", "band": "batch", "amounts": {"cpu": 1}}, 201),
    ],
)
def test_a_rehearsed_write_answers_as_the_real_one_and_changes_nothing(
    sre: Client, settings, method: str, path: str, body: dict, status: int, tmp_path
) -> None:
    settings.BORG_AUTHORITY = str(tmp_path)
    cell = rows.a_cell()
    rows.a_tenant("ubar")
    rows.a_tenant("org")
    rows.a_machine(cell)
    with transaction.atomic():
        published_capacity.publish(cell=cell.name, capacity=rows.LARGE, revision=1)
    budget_grant(principal=system("test"), tenant=rows.a_tenant("ubar"), amount=10**9)
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
