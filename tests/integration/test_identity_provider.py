"""Tests of signing in through an identity provider, which runs as a real process on this host."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.cache import cache
from django.test import Client

from quota.models import Membership, Record
from tests.integration import portal_world, rows
from tests.ports import free_port

pytestmark = pytest.mark.django_db
START_S = 30.0
ROLES = "search-team=operator@ubar, leads=owner@ubar, sres=sre, sres=group@Fleet, cooks=viewer@kitchen"


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    """Yield the URL of an identity provider."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_S
        while True:
            try:
                httpx.get(f"{url}/.well-known/openid-configuration").raise_for_status()
                break
            except httpx.TransportError:
                assert time.monotonic() < end, "the identity provider does not answer"
                assert process.poll() is None, "the identity provider has ended"
                time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def _settings(settings, provider):
    cache.clear()
    use(settings, provider)
    settings.BORG_OIDC_ROLES = ROLES
    rows.a_tenant("ubar")
    rows.a_tenant("other")
    Group.objects.create(name="Fleet")


def use(settings, url: str) -> None:
    settings.BORG_OIDC_URL = url
    app = {
        **settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0],
        "secret": "s",
        "settings": {"server_url": url},
    }
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [app]}}


def at_provider(provider: str, subject: str, *groups: str, **claims: object) -> None:
    """Set what the provider says about a person."""
    body = {"preferred_username": subject, "groups": list(groups), **claims}
    httpx.put(f"{provider}/users/{subject}", json=body).raise_for_status()


def come_in(subject: str, *, client: Client | None = None, deny: bool = False):
    """Sign in through the provider with a browser, and return the browser and the answer of the portal."""
    client = client or Client()
    begin = client.get("/accounts/oidc/company/login/", {"next": "/tokens/"})
    assert begin.status_code == 302, begin.content
    form = {"action": "deny"} if deny else {"sub": subject}
    back = urlsplit(httpx.post(begin["Location"], data=form).headers["Location"])
    assert back.path == "/accounts/oidc/company/login/callback/"
    query = back.query if "state=" in back.query else f"{back.query}&{urlsplit(begin['Location']).query}"
    return client, client.get(f"{back.path}?{query}")


def person(name: str):
    return get_user_model().objects.get(username=name)


def roles(name: str) -> dict[str, str]:
    return dict(Membership.objects.filter(user__username=name).values_list("tenant__name", "role"))


def test_a_new_person_gets_an_account_with_the_roles_of_the_groups(provider) -> None:
    at_provider(provider, "ann", "search-team", "cooks", "unknown", email="ann@example.org", email_verified=True)
    client, answer = come_in("ann")
    assert (answer.status_code, answer["Location"]) == (302, "/tokens/")
    ann = person("ann")
    assert (ann.email, ann.is_staff, ann.has_usable_password()) == ("ann@example.org", False, False)
    assert roles("ann") == {"ubar": "operator"}, "the tenant kitchen does not exist"
    assert client.get("/tokens/").status_code == 200
    assert client.session.get_expiry_age() <= 12 * 3600
    assert Record.objects.get(kind="member.set").actor == "system:identity-provider"


def test_rights_that_the_groups_no_longer_give_are_taken_away(provider) -> None:
    at_provider(provider, "sue", "search-team", "leads", "sres")
    come_in("sue")
    sue = person("sue")
    Membership.objects.create(tenant=rows.a_tenant("mine"), user=sue, role="buyer")
    assert (sue.is_staff, [group.name for group in sue.groups.all()]) == (True, ["Fleet"])
    assert roles("sue") == {"ubar": "owner", "mine": "buyer"}, "the stronger role counts"
    at_provider(provider, "sue", "search-team")
    come_in("sue")
    sue = person("sue")
    assert (sue.is_staff, sue.groups.count()) == (False, 0)
    assert roles("sue") == {"ubar": "operator", "mine": "buyer"}, "the provider does not decide about `mine`"


def test_a_person_without_a_group_that_counts_loses_all_rights_and_is_rejected(provider) -> None:
    at_provider(provider, "tom", "leads")
    come_in("tom")
    at_provider(provider, "tom", "gardeners")
    client, answer = come_in("tom")
    assert answer.status_code == 403
    assert "None of your groups" in answer.content.decode()
    assert roles("tom") == {}, "also if the person was the last owner"
    assert client.get("/tokens/").status_code == 302
    at_provider(provider, "uwe", "gardeners")
    assert come_in("uwe")[1].status_code == 403
    assert not get_user_model().objects.filter(username="uwe").exists()


def test_a_verified_address_links_an_account_which_then_has_no_password(provider) -> None:
    old = portal_world.person("bob", email="bob@example.org")
    at_provider(provider, "b1234", "search-team", email="Bob@example.org", email_verified=True)
    _, answer = come_in("b1234")
    assert answer.status_code == 302
    assert SocialAccount.objects.get().user == old
    assert not person("bob").has_usable_password()
    assert roles("bob") == {"ubar": "operator"}


@pytest.mark.parametrize("verified", [False, None, "true"])
def test_an_address_that_is_not_verified_links_nothing(provider, verified) -> None:
    portal_world.person("carl", email="carl@example.org")
    at_provider(provider, "x1", "search-team", email="carl@example.org", email_verified=verified)
    come_in("x1")
    assert SocialAccount.objects.get().user.username == "x1"
    assert person("carl").has_usable_password()


def test_a_taken_user_name_is_not_given_away(provider) -> None:
    portal_world.person("dora")
    at_provider(provider, "dora", "search-team")
    come_in("dora")
    assert SocialAccount.objects.get().user.username != "dora"
    assert roles("dora") == {}


def test_a_second_factor_of_the_portal_is_asked_for(provider, settings) -> None:
    settings.BORG_SRE_SECOND_FACTOR = True
    at_provider(provider, "eve", "sres")
    client, _ = come_in("eve")
    assert client.get("/admin/")["Location"] == "/accounts/2fa/totp/activate/"


def test_a_person_who_cancels_gets_a_page_that_says_so(provider) -> None:
    _, answer = come_in("ann", deny=True)
    assert (answer.status_code, "was cancelled" in answer.content.decode()) == (403, True)


def test_an_answer_with_a_wrong_state_signs_nobody_in(provider) -> None:
    at_provider(provider, "ann", "search-team")
    client = Client()
    begin = client.get("/accounts/oidc/company/login/")
    back = urlsplit(httpx.post(begin["Location"], data={"sub": "ann"}).headers["Location"])
    stolen = Client().get(f"{back.path}?{back.query}")
    assert (stolen.status_code, "did not confirm" in stolen.content.decode()) == (403, True)
    assert not get_user_model().objects.filter(username="ann").exists()


def test_nobody_links_an_account_by_hand(provider) -> None:
    portal_world.person("ann")
    client = portal_world.signed_in("ann")
    at_provider(provider, "mallory", "search-team")
    begin = client.get("/accounts/oidc/company/login/", {"process": "connect"})
    back = urlsplit(httpx.post(begin["Location"], data={"sub": "mallory"}).headers["Location"])
    assert client.get(f"{back.path}?{back.query}").status_code == 403
    assert not SocialAccount.objects.exists()


def test_a_provider_that_does_not_answer_gives_a_page_that_says_so(settings) -> None:
    use(settings, f"http://127.0.0.1:{free_port()}")
    answer = Client().get("/accounts/oidc/company/login/")
    assert (answer.status_code, "did not confirm" in answer.content.decode()) == (403, True)


def test_the_page_to_sign_in_offers_the_provider_if_there_is_one(settings) -> None:
    page = Client().get("/accounts/login/", {"next": "/jobs/"}).content.decode()
    assert 'href="/accounts/oidc/company/login/?next=%2Fjobs%2F"' in page
    settings.BORG_OIDC_URL = ""
    assert "oidc" not in Client().get("/accounts/login/").content.decode()
