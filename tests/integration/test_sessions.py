"""Tests of sessions of people: they are recorded, listed with their last use, and ended by the person or an SRE."""

from __future__ import annotations

import datetime as dt

import pytest
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from portal.live.callers import principal_of_session
from quota.models import Record
from quota.retention import forget_old
from quota.tenancy.tokens import token_issue
from quota.vocabulary.browsers import browser_of
from quota.vocabulary.permissions import Scope, system
from tests.integration import portal_world
from tests.integration.portal_world import PASSWORD

pytestmark = pytest.mark.django_db
SESSIONS = "/api/v1/sessions/"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.fixture(autouse=True)
def _world():
    cache.clear()
    for name in ("ann", "bob"):
        portal_world.person(name)
    portal_world.person("sre", is_staff=True)


def browser(name: str = "ann", address: str = "192.0.2.7") -> Client:
    """Return a browser in which the person has signed in on the page."""
    client = Client(headers={"user-agent": FIREFOX}, REMOTE_ADDR=address)
    assert client.post("/accounts/login/", {"login": name, "password": PASSWORD}).status_code == 302
    return client


def listed(client: Client, **query: str) -> list[dict]:
    return client.get(SESSIONS, query).json()["results"]


def signed_in(client: Client) -> bool:
    return client.get("/sign-in/").status_code == 200


def test_a_person_sees_where_the_person_is_signed_in(settings) -> None:
    here, there = browser(), browser(address="2001:db8::1")
    browser("bob")
    rows = {row["address"]: row for row in listed(here)}
    assert set(rows) == {"192.0.2.7", "2001:db8::1"}
    assert {row["browser"] for row in rows.values()} == {"Firefox, Linux"}
    assert [rows[address]["current"] for address in ("192.0.2.7", "2001:db8::1")] == [True, False]
    page = here.get("/sign-in/").content.decode()
    assert "this session" in page
    assert "2001:db8::1" in page
    assert there.cookies[settings.SESSION_COOKIE_NAME].value not in page, "the key of a session gives access"


def test_a_session_that_is_used_is_recorded_every_five_minutes() -> None:
    client = browser()
    old = timezone.now() - dt.timedelta(hours=3)
    UserSession.objects.update(last_seen_at=old)
    cache.clear()  # five minutes later
    client.get("/sign-in/")
    first = UserSession.objects.get().last_seen_at
    assert first > old
    client.get("/sign-in/")
    assert UserSession.objects.get().last_seen_at == first, "no write per request"


def test_a_session_from_before_this_feature_is_recorded_at_its_next_request() -> None:
    client = portal_world.signed_in("ann")
    assert client.get("/sign-in/").status_code == 200
    assert [row["current"] for row in listed(client)] == [True]


@pytest.mark.parametrize("address", ["", "unknown", "testserver:80"])
def test_a_proxy_that_gives_no_address_does_not_prevent_signing_in(address) -> None:
    assert [row["address"] for row in listed(browser(address=address))] == ["0.0.0.0"]


def test_an_ended_session_is_signed_out_and_its_live_pages_close() -> None:
    here, there = browser(), browser(address="198.51.100.1")
    user = get_user_model().objects.get(username="ann")
    live = {"session": there.session, "user": user, "headers": []}
    assert principal_of_session(live) is not None
    number = next(row["id"] for row in listed(here) if not row["current"])
    assert here.post("/sign-in/sessions/end/", {"session": number}).status_code == 302
    assert (signed_in(here), signed_in(there), principal_of_session(live)) == (True, False, None)
    record = Record.objects.get(kind="session.ended")
    assert (record.actor, record.data) == ("ann", {"user": "ann", "address": "198.51.100.1"})
    assert here.post("/sign-in/sessions/end/", {"session": number}).status_code == 404


def test_all_other_sessions_end_at_once() -> None:
    here, others = browser(), [browser(), browser()]
    assert (
        "2 sessions were ended."
        in here.post("/sign-in/sessions/end/", {"session": "others"}, follow=True).content.decode()
    )
    assert [signed_in(client) for client in (here, *others)] == [True, False, False]


def test_only_an_sre_sees_and_ends_sessions_of_others() -> None:
    ann, bob, sre = browser(), browser("bob"), browser("sre")
    assert bob.get(SESSIONS, {"user": "ann"}).status_code == 403
    assert sre.get(f"{SESSIONS}?user=a%00").status_code == 422
    assert sre.get(SESSIONS, {"user": "nobody"}).status_code == 404
    number = listed(ann)[0]["id"]
    assert bob.delete(f"{SESSIONS}{number}/").status_code == 404
    assert [row["id"] for row in listed(sre, user="ann")] == [number]
    assert sre.delete(f"{SESSIONS}?user=ann").json() == {"ended": 1}
    assert (signed_in(ann), signed_in(bob), signed_in(sre)) == (False, True, True)


def test_a_token_without_scope_admin_lists_sessions_and_ends_none() -> None:
    here = browser()
    user = get_user_model().objects.get(username="ann")
    _, secret = token_issue(principal=system("test"), user=user, name="ci", scopes=[Scope.READ.value])
    client = Client(headers={"authorization": f"Bearer {secret}"})
    rows = listed(client)
    assert [row["current"] for row in rows] == [False]
    refused = client.delete(f"{SESSIONS}{rows[0]['id']}/")
    assert (refused.status_code, "scope admin" in refused.json()["detail"]) == (403, True)
    assert signed_in(here)


def test_sessions_of_an_old_password_are_not_listed() -> None:
    here, there = browser(), browser(address="198.51.100.1")
    new = "battery staple horse"
    change = {"oldpassword": PASSWORD, "password1": new, "password2": new}
    assert here.post("/accounts/password/change/", change).status_code == 302
    assert [row["address"] for row in listed(here)] == ["192.0.2.7"]
    assert not signed_in(there)


def test_signing_out_removes_the_session_from_the_list() -> None:
    here, there = browser(), browser(address="198.51.100.1")
    there.post("/accounts/logout/")
    assert [row["current"] for row in listed(here)] == [True]


def test_ended_sessions_are_deleted_from_the_record() -> None:
    browser()
    browser(address="198.51.100.1").post("/accounts/logout/")
    assert forget_old().get("sessions") is None, "kept for a day"
    UserSession.objects.update(last_seen_at=timezone.now() - dt.timedelta(days=2))
    assert forget_old()["sessions"] == 1
    assert UserSession.objects.get().ip == "192.0.2.7"


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        (FIREFOX, "Firefox, Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0", "Edge, Windows"),
        ("Mozilla/5.0 (Linux; Android 15) Chrome/140.0 Mobile Safari/537.36", "Chrome, Android"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Safari/604.1", "Safari, iPhone"),
        ("curl/8.5.0", "curl/8.5.0"),
        ("", "unknown browser"),
    ],
)
def test_browsers_are_named(header, shown) -> None:
    assert browser_of(header) == shown


def test_the_engine_of_sessions_is_the_database() -> None:
    """`session_end` deletes rows of this table."""
    assert settings.SESSION_ENGINE == "django.contrib.sessions.backends.db"
