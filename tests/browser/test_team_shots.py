"""Tests that no page of organisations and teams is wider than the screen. With SHOTS=1, they save pictures."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model

from quota.models import Tenant
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.capabilities import capability_answer, capability_ask, capability_grant
from quota.tenancy.invitations import invitation_send, link_of
from quota.tenancy.service_accounts import service_account_create, service_account_token
from quota.tenancy.tenants import tenant_create, tenant_set
from quota.vocabulary.permissions import Role
from tests.browser.conftest import sign_in
from tests.browser.looks import look_at
from tests.integration import rows
from tests.integration import world as people

PAGES = {
    "teams": "/tenants/",
    "team": "/tenants/ubar/",
    "team-below": "/tenants/maps/",
    "team-invitations": "/tenants/ubar/invitations/",
    "team-accounts": "/tenants/ubar/service-accounts/",
    "team-account": "/tenants/ubar/service-accounts/ci/",
    "team-capabilities": "/tenants/ubar/capabilities/",
    "team-records": "/tenants/ubar/records/",
}


@pytest.fixture
def secret(world) -> str:
    """Fill two tenants with rows of each kind that the pages show. Return the secret of an open invitation."""
    ubar = Tenant.objects.get(name="ubar")
    tenant_set(principal=rows.ME, tenant=ubar, title="Web search", contact="search@example.org", time_zone="Asia/Tokyo")
    sre = get_user_model().objects.get(username="sre")
    people.a_user("sre", tenant=ubar, role=Role.OWNER)
    boss = principal_of_user(sre)
    maps = tenant_create(principal=boss, name="maps", title="Maps", parent="ubar")
    ann = people.a_user("ann", tenant=ubar, role=Role.OPERATOR)
    people.a_user("bob", tenant=maps, role=Role.BUYER)
    account = service_account_create(
        principal=boss, tenant=ubar, name="ci", role="operator", description="builds and releases"
    )
    service_account_token(principal=boss, account=account, name="runner")
    capability_grant(principal=rows.ME, user=ann, kind="shell", cell="cc", reason="on call this quarter")
    asked = capability_ask(
        principal=principal_of_user(ann),
        tenant=ubar,
        username="ann",
        kind="any-job",
        cell="cc",
        reason="clean up after tests",
    )
    capability_answer(principal=rows.ME, request=asked, granted=False, answer="ask the owners of the jobs")
    capability_ask(
        principal=boss, tenant=ubar, username="ci@ubar", kind="no-reclamation", reason="latency measurements"
    )
    invitation_send(principal=boss, tenant=ubar, email="carol@example.org", role="viewer")
    _, secret = invitation_send(principal=boss, tenant=ubar, email="dave@example.org", role="buyer")
    return secret


def test_pages_of_teams_look_right(page, secret) -> None:
    page.goto("/invitations/" + link_of(secret).rsplit("/invitations/")[1])
    look_at(page, "join")
    page.get_by_role("link", name="Create an account").click()
    look_at(page, "signup")
    sign_in(page, "sre")
    for name, path in PAGES.items():
        page.goto(path)
        look_at(page, name)
