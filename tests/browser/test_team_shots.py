"""Screenshots of the pages of organisations and teams, in both themes and two widths. They are saved in `shots/`."""

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
from tests.browser.conftest import LOOKS, SHOTS, sign_in
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


@pytest.mark.parametrize(("size", "theme"), LOOKS)
def test_pages_of_teams_look_right(chromium, portal, secret, size, theme) -> None:
    SHOTS.mkdir(exist_ok=True)
    context = chromium.new_context(base_url=portal, viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    try:
        page = context.new_page()

        def shoot(name: str) -> None:
            page.wait_for_load_state("load")
            page.screenshot(path=SHOTS / f"{name}-{theme}-{size[0]}.png", full_page=True)
            sideways = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert sideways <= 0, f"{name} is {sideways} px wider than the screen"

        path = "/invitations/" + link_of(secret).rsplit("/invitations/")[1]
        page.goto(path)
        shoot("join")
        page.get_by_role("link", name="Create an account").click()
        shoot("signup")
        sign_in(page, "sre")
        for name, where in PAGES.items():
            page.goto(where)
            shoot(name)
    finally:
        context.close()
