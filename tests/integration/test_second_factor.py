"""Tests of the second factor: SREs must use one, with their sessions only, and `borgctl login` accepts its codes."""

from __future__ import annotations

import re
import time

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, generate_totp_secret, hotp_value
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.test import Client

from portal.live.callers import principal_of_session
from quota.models import Record, Token
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import Scope, system
from tests.integration import portal_world
from tests.integration.portal_world import PASSWORD

pytestmark = pytest.mark.django_db
SET_UP = "/accounts/2fa/totp/activate/"


@pytest.fixture(autouse=True)
def _enforced(settings):
    settings.BORG_SRE_SECOND_FACTOR = True
    cache.clear()
    portal_world.person("ann")
    portal_world.person("sre", is_staff=True, is_superuser=True)


def user(name: str = "sre"):
    return get_user_model().objects.get(username=name)


def an_app(name: str = "sre") -> str:
    """Give the person an app for codes, and return the secret of the app."""
    secret = generate_totp_secret()
    TOTP.activate(user(name), secret)
    return secret


def code(secret: str) -> str:
    cache.clear()  # a code is accepted once
    return format_hotp_value(hotp_value(secret, int(time.time()) // 30))


def with_password(name: str = "sre", **more: str):
    client = Client()
    return client, client.post("/accounts/login/", {"login": name, "password": PASSWORD, **more})


def login(name: str, **more: str):
    body = {"username": name, "password": PASSWORD, "name": "laptop", **more}
    return Client().post("/api/v1/login/", body, content_type="application/json")


@pytest.mark.parametrize("path", ["/", "/admin/", "/jobs/", "/sign-in/", "/tokens/", "/accounts/password/change/"])
def test_an_sre_without_a_second_factor_is_sent_to_set_it_up(path) -> None:
    client, _ = with_password()
    answer = client.get(path)
    assert (answer.status_code, answer["Location"]) == (302, SET_UP)


@pytest.mark.django_db(transaction=True)
def test_an_sre_sets_up_an_app_and_then_reaches_everything() -> None:
    client, _ = with_password()
    page = client.get(SET_UP).content.decode()
    assert "SREs need a second factor in this portal" in page
    secret = client.session["mfa.totp.secret"]
    assert secret in page
    answer = client.post(SET_UP, {"code": code(secret)})
    assert (answer.status_code, answer["Location"]) == (302, "/accounts/2fa/recovery-codes/")
    codes = re.findall(r"\b\d{8}\b", client.get(answer["Location"]).content.decode())
    assert len(codes) == 10
    assert client.get("/admin/").status_code == 200
    assert client.get("/api/v1/cells/").status_code == 200


def test_the_api_with_a_session_and_websockets_wait_for_the_second_factor() -> None:
    client, _ = with_password()
    refused = client.post("/api/v1/tokens/", {"name": "x"}, content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (403, "second-factor-needed")
    assert not Token.objects.exists()
    scope = {"session": client.session, "user": user(), "headers": []}
    assert principal_of_session(scope) is None
    answer = client.get("/", headers={"authorization": "Bearer borg_x_y"})
    assert answer.status_code == 302, "the header matters to programs only"


def test_tokens_are_not_affected() -> None:
    _, secret = token_issue(principal=system("test"), user=user(), name="ci", scopes=[Scope.READ.value])
    client, _ = with_password()
    for caller in (Client(), client):
        assert caller.get("/api/v1/cells/", headers={"authorization": f"Bearer {secret}"}).status_code == 200


def test_other_people_need_none(settings) -> None:
    client, _ = with_password("ann")
    assert client.get("/sign-in/").status_code == 200
    settings.BORG_SRE_SECOND_FACTOR = False
    client, _ = with_password()
    assert client.get("/admin/").status_code == 200


def test_a_session_from_before_confirms_once() -> None:
    client, _ = with_password()
    secret = an_app()
    answer = client.get("/jobs/?q=1")
    assert answer.status_code == 302
    assert answer["Location"].startswith("/accounts/2fa/reauthenticate/?next=%2Fjobs%2F%3Fq%3D1")
    done = client.post("/accounts/2fa/reauthenticate/", {"code": code(secret), "next": "/jobs/?q=1"})
    assert (done.status_code, done["Location"]) == (302, "/jobs/?q=1")
    assert client.get("/jobs/").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/accounts/reauthenticate/",
        "/accounts/2fa/",
        "/accounts/2fa/recovery-codes/",
        "/accounts/2fa/recovery-codes/generate/",
        "/accounts/2fa/recovery-codes/download/",
        "/accounts/2fa/webauthn/add/",
        "/accounts/2fa/totp/deactivate/",
        "/accounts/password/set/",
    ],
)
def test_a_session_that_has_not_confirmed_cannot_make_a_factor_of_its_own(path) -> None:
    """Somebody with an old session and the password would otherwise pass the second factor of its owner."""
    client, _ = with_password()
    an_app()
    for send in (client.get, client.post):
        answer = send(path, {"password": PASSWORD} if send == client.post else None)
        assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, "/accounts/2fa/reauthenticate/")


def test_the_librarys_own_pages_for_passwords_and_sessions_are_closed(settings) -> None:
    settings.BORG_SRE_SECOND_FACTOR = False
    client, _ = with_password("ann")
    assert client.post("/accounts/password/set/", {"password1": "x", "password2": "x"}).status_code == 403
    assert client.post("/accounts/sessions/")["Location"] == "/sign-in/"


def test_a_sign_in_with_a_code_needs_nothing_more() -> None:
    secret = an_app()
    client, answer = with_password()
    assert answer["Location"] == "/accounts/2fa/authenticate/"
    assert client.get("/admin/").status_code == 302
    wrong = client.post("/accounts/2fa/authenticate/", {"code": "000000"})
    assert "Incorrect code" in wrong.content.decode()
    assert client.post("/accounts/2fa/authenticate/", {"code": code(secret)}).status_code == 302
    assert client.get("/admin/").status_code == 200


def test_an_sre_cannot_remove_the_last_second_factor(settings) -> None:
    secret = an_app()
    client, _ = with_password()
    client.post("/accounts/2fa/authenticate/", {"code": code(secret)})
    client.post("/accounts/2fa/totp/deactivate/")
    assert Authenticator.objects.filter(user=user()).exists()
    settings.BORG_SRE_SECOND_FACTOR = False
    client.post("/accounts/2fa/totp/deactivate/")
    assert not Authenticator.objects.filter(user=user()).exists()


def test_the_rest_login_of_an_sre_needs_a_second_factor_and_its_code() -> None:
    refused = login("sre")
    assert (refused.status_code, refused.json()["figures"]) == (403, {"step": "set-up"})
    secret = an_app()
    assert login("sre").json()["figures"] == {"step": "confirm"}
    wrong = login("sre", code="123")
    assert (wrong.status_code, wrong.json()["code"], list(wrong.json()["fields"])) == (401, "wrong-code", ["code"])
    assert login("sre", code=code(secret)).status_code == 201


def test_a_recovery_code_is_accepted_once_and_wrong_codes_are_limited() -> None:
    an_app("ann")
    recovery = RecoveryCodes.activate(user("ann")).generate_codes()[0]
    assert login("ann", code=recovery).status_code == 201
    answers = [login("ann", code=recovery).json() for _ in range(6)]
    assert answers[0]["code"] == "wrong-code"
    assert "Too many" in answers[-1]["detail"]


def test_an_sre_removes_the_second_factors_of_somebody_who_lost_them() -> None:
    an_app("ann")
    secret = an_app()
    sre, _ = with_password()
    sre.post("/accounts/2fa/authenticate/", {"code": code(secret)})
    action = {"action": "remove_second_factors", "_selected_action": [user("ann").pk]}
    page = sre.post("/admin/auth/user/", action, follow=True).content.decode()
    assert "1 second factor was removed." in page
    assert [authenticator.user for authenticator in Authenticator.objects.all()] == [user()]
    assert Record.objects.get(kind="second-factor.removed").data == {"user": "ann"}
    _, answer = with_password("ann")
    assert answer["Location"] == "/"
