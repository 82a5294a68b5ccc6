"""Tests of signing in through an identity provider, which runs as a real process on this host."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from urllib.parse import urlsplit

import httpx
import pytest
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from allauth.socialaccount.models import SocialAccount, SocialLogin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, Group
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.test import Client, RequestFactory
from django.utils import timezone

from portal.single_sign_on import ProviderAdapter, verified_address
from quota.models import Membership, Record
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import system
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


def test_linking_ends_all_that_somebody_else_prepared_in_the_account(provider) -> None:
    bob = portal_world.person("bob", email="bob@example.org")
    browser, other = Client(), portal_world.signed_in("bob")
    browser.post("/accounts/login/", {"login": "bob", "password": portal_world.PASSWORD})
    assert browser.get("/tokens/").status_code == other.get("/tokens/").status_code == 200
    token, secret = token_issue(principal=system("test"), user=bob, name="old", scopes=["read"])
    with_token = Client(headers={"authorization": f"Bearer {secret}"})
    assert with_token.get("/api/v1/tokens/").status_code == 200
    TOTP.activate(bob, generate_totp_secret())
    at_provider(provider, "b1234", "sres", email="bob@example.org", email_verified=True)
    _, answer = come_in("b1234", client=browser)
    assert (answer.status_code, person("bob").is_staff) == (302, True)
    assert browser.get("/tokens/").status_code == 200
    assert with_token.get("/api/v1/tokens/").status_code == 401
    assert not Authenticator.objects.exists()
    assert other.get("/tokens/").status_code == 302
    assert Session.objects.count() == 1, "the one of this sign-in"
    assert Record.objects.get(kind="token.revoked").data["key"] == token.key


def test_an_account_that_is_linked_is_not_linked_to_a_second_person(provider) -> None:
    """For example, a new employee gets the address of one who has left."""
    at_provider(provider, "old", "leads", email="vic@example.org", email_verified=True)
    come_in("old")
    at_provider(provider, "new", "sres", email="vic@example.org", email_verified=True)
    come_in("new")
    assert (person("old").is_staff, person("new").is_staff) == (False, True)


def test_an_address_and_its_state_come_from_the_same_document() -> None:
    def login(**extra: object) -> SocialLogin:
        return SocialLogin(account=SocialAccount(extra_data=extra))

    proved = {"email": "a@example.org", "email_verified": True}
    assert verified_address(login(userinfo=proved, id_token={"sub": "a"})) == "a@example.org"
    assert verified_address(login(userinfo=proved, id_token={"email": "b@example.org"})) == ""
    assert verified_address(login(userinfo={"email": "b@example.org"}, id_token={"email_verified": True})) == ""


def test_an_account_that_is_not_linked_stays_as_it_is_if_no_group_gives_rights(provider) -> None:
    portal_world.person("root", email="root@example.org", is_staff=True, is_superuser=True)
    at_provider(provider, "root1", "gardeners", email="root@example.org", email_verified=True)
    assert come_in("root1")[1].status_code == 403
    root = person("root")
    assert (root.is_staff, root.is_superuser, root.has_usable_password()) == (True, True, True)
    assert not SocialAccount.objects.exists()


def test_the_account_of_an_sre_is_linked_only_if_the_provider_decides_who_is_one(provider, settings) -> None:
    settings.BORG_OIDC_ROLES = "search-team=operator@ubar"
    portal_world.person("root", email="root@example.org", is_staff=True)
    at_provider(provider, "root1", "search-team", email="root@example.org", email_verified=True)
    come_in("root1")
    assert SocialAccount.objects.get().user.username == "root1"
    assert person("root").has_usable_password()


def test_a_session_ends_12_hours_after_the_sign_in_whatever_happens_in_it(provider) -> None:
    at_provider(provider, "ann", "search-team")
    client, _ = come_in("ann")
    begun = timezone.now()
    assert client.get("/accounts/oidc/company/login/").status_code == 302, "the session now contains the state of this"
    end = client.session.get_expiry_date(modification=begun + timedelta(hours=11))
    assert abs(end - (begun + timedelta(hours=12))) < timedelta(minutes=1)


def test_a_person_of_the_provider_signs_in_only_there(provider) -> None:
    """Not even with a password that an SRE has set in the console. The adapter gets passkeys in the same way."""
    at_provider(provider, "sue", "search-team")
    come_in("sue")
    sue = person("sue")
    sue.set_password(portal_world.PASSWORD)
    sue.save()
    client = Client()
    page = client.post("/accounts/login/", {"login": "sue", "password": portal_world.PASSWORD})
    assert (page.status_code, "only through the identity provider" in page.content.decode()) == (403, True)
    assert client.get("/tokens/").status_code == 302
    body = {"username": "sue", "password": portal_world.PASSWORD, "name": "laptop"}
    answer = Client().post("/api/v1/login/", body, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (403, "at-the-provider")
    assert come_in("sue")[1].status_code == 302


@pytest.mark.parametrize("verified", [False, None, "true"])
def test_an_address_that_is_not_verified_links_nothing(provider, verified) -> None:
    portal_world.person("carl", email="carl@example.org")
    at_provider(provider, "x1", "search-team", email="carl@example.org", email_verified=verified)
    come_in("x1")
    assert SocialAccount.objects.get().user.username == "x1"
    assert person("x1").email == "", "the next person with this address would be linked to the account"
    assert person("carl").has_usable_password()


def test_a_command_on_the_server_makes_an_account_independent_of_the_provider(provider) -> None:
    at_provider(provider, "old", "sres", email="vic@example.org", email_verified=True)
    client, _ = come_in("old")
    TOTP.activate(person("old"), generate_totp_secret())
    with pytest.raises(CommandError, match="nobody"):
        call_command("reset_sign_in", "old", "nobody")
    assert client.get("/tokens/").status_code == 200, "nothing was changed"
    call_command("reset_sign_in", "old", stdout=StringIO())
    assert (client.get("/tokens/").status_code, Authenticator.objects.count()) == (302, 0)
    assert SocialAccount.objects.count() == 1
    call_command("reset_sign_in", "old", "--unlink", stdout=StringIO())
    assert not SocialAccount.objects.exists()
    assert Record.objects.get(kind="account.unlinked").data == {"user": "old"}
    at_provider(provider, "new", "sres", email="vic@example.org", email_verified=True)
    come_in("new")
    assert SocialAccount.objects.get().user == person("old"), "for example, the company has another provider now"


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


def test_user_info_of_another_person_than_the_id_token_signs_nobody_in() -> None:
    account = SocialAccount(extra_data={"id_token": {"sub": "a", "groups": ["sres"]}, "userinfo": {"sub": "b"}})
    request = RequestFactory().get("/")
    request.user, request.session = AnonymousUser(), {}
    with pytest.raises(ImmediateHttpResponse) as answer:
        ProviderAdapter().pre_social_login(request, SocialLogin(user=get_user_model()(), account=account))
    assert "did not confirm" in answer.value.response.content.decode()


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
