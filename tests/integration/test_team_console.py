"""Tests of the console's pages of organisations, invitations, service accounts and requested capabilities."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from quota.models import Capability, CapabilityRequest, Membership, Record, Tenant
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.capabilities import capability_ask
from quota.tenancy.invitations import invitation_send
from quota.tenancy.service_accounts import service_account_create
from quota.tenancy.tenants import tenant_create
from tests.integration import rows, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def sre() -> Client:
    user = get_user_model().objects.create_user("root", password="x" * 12, is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def tenant() -> Tenant:
    return rows.a_tenant("ubar")


def test_a_tenant_moves_under_an_organisation_and_no_deeper(sre, tenant) -> None:
    org = tenant_create(principal=rows.ME, name="search")
    path = reverse("admin:quota_tenant_change", args=[tenant.pk])
    given = {"title": "U", "contact": "", "time_zone": "Asia/Tokyo", "max_jobs": 5, "max_teams": 3, "task_api": "read"}
    assert sre.post(path, {**given, "parent": org.pk}).status_code == 302
    tenant.refresh_from_db()
    assert (tenant.parent, tenant.time_zone, tenant.max_teams) == (org, "Asia/Tokyo", 3)
    wrong = sre.post(reverse("admin:quota_tenant_change", args=[org.pk]), {**given, "parent": tenant.pk})
    assert "ubar is a team" in wrong.text
    wrong = sre.post(path, {**given, "parent": org.pk, "time_zone": "Mars"})
    assert "not a time zone" in wrong.text


def test_the_last_owner_stays_in_the_console_too(sre, tenant) -> None:
    world.a_user("ann", tenant=tenant)
    member = Membership.objects.get()
    path = reverse("admin:quota_membership_delete", args=[member.pk])
    answer = sre.post(path, {"post": "yes"}, follow=True)
    assert "make another member an owner first" in answer.text
    assert Membership.objects.filter(pk=member.pk).exists()


def test_requests_are_answered_on_their_page(sre, tenant) -> None:
    ann = world.a_user("ann", tenant=tenant)
    for kind in ("shell", "any-job"):
        capability_ask(principal=principal_of_user(ann), tenant=tenant, username="ann", kind=kind, reason="why not")
    shell, jobs = CapabilityRequest.objects.order_by("id")

    def answer(row, **given):
        until = {"until_0": row.until.strftime("%Y-%m-%d"), "until_1": row.until.strftime("%H:%M:%S")}
        return sre.post(reverse("admin:quota_capabilityrequest_change", args=[row.pk]), {**until, **given})

    assert answer(shell, state="granted", answer="").status_code == 302
    assert Capability.objects.get().kind == "shell"
    assert "give a reason" in answer(jobs, state="refused", answer="").text
    assert "choose granted or rejected" in answer(jobs, state="open", answer="").text
    assert answer(jobs, state="refused", answer="ask the owners").status_code == 302
    assert answer(jobs, state="granted", answer="").status_code == 403
    assert Record.objects.filter(kind="capability.refused", actor="root").exists()
    assert sre.get(reverse("admin:quota_capabilityrequest_changelist")).status_code == 200


def test_invitations_and_service_accounts_are_ended_from_their_lists(sre, tenant) -> None:
    ann = world.principal("ann", tenant=tenant)
    row, _ = invitation_send(principal=ann, tenant=tenant, email="bob@example.org", role="viewer")
    account = service_account_create(principal=ann, tenant=tenant, name="ci", role="viewer")
    for page, action, pk in (("invitation", "withdraw", row.pk), ("serviceaccount", "disable", account.pk)):
        path = reverse(f"admin:quota_{page}_changelist")
        assert sre.post(path, {"action": action, "_selected_action": [pk]}, follow=True).status_code == 200
        assert sre.get(reverse(f"admin:quota_{page}_change", args=[pk])).status_code == 200
    row.refresh_from_db()
    account.user.refresh_from_db()
    assert row.withdrawn_at is not None
    assert not account.user.is_active
    assert "ci@ubar" not in sre.get(reverse("admin:auth_user_changelist")).text
    assert sre.get(reverse("admin:auth_user_change", args=[account.user.pk])).status_code == 302
