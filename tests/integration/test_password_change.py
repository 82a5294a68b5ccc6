"""Tests of a password change: it ends other sessions, their WebSockets and, on request, the user's tokens."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client
from websockets.sync.client import connect

from borglet.messages import ShellFrame, shell_frame_of
from portal.live.callers import principal_of_session
from quota.models import Capability, Record, Token
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import Scope, system
from scheduling.journal import wakeups
from scheduling.machines import last_contact
from scheduling.shells import streams
from tests.integration import portal_world
from tests.integration.portal_world import PASSWORD, signed_in

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = "/accounts/password/change/"
NEW = "battery staple horse"
WAIT_S = 40.0


@pytest.fixture
def world():
    return portal_world.make()


def change(client: Client, **more: Any):
    return client.post(PAGE, {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW, **more})


def a_token(name: str, *, of: str = "operator") -> tuple[Token, str]:
    user = get_user_model().objects.get(username=of)
    return token_issue(principal=system("test"), user=user, name=name, scopes=[Scope.READ, Scope.ADMIN])


def scope_of(client: Client) -> dict[str, Any]:
    """Return the ASGI scope of a WebSocket that was opened with the session of this client."""
    user = get_user_model().objects.get(pk=client.session["_auth_user_id"])
    return {"session": client.session, "user": user, "headers": []}


def test_a_websocket_proves_nothing_after_the_password_was_changed(world) -> None:
    here, elsewhere = signed_in("operator"), signed_in("operator")
    scopes = [scope_of(here), scope_of(elsewhere)]
    assert all(principal_of_session(scope) for scope in scopes)
    assert change(here).status_code == 302
    assert [principal_of_session(scope) for scope in scopes] == [None, None]
    assert principal_of_session(scope_of(here)), "the session that changed it stays signed in"


def test_a_secret_key_that_is_being_replaced_ends_no_websocket(world, settings) -> None:
    scope = scope_of(signed_in("operator"))
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another-secret-key-of-at-least-fifty-characters-here"
    assert principal_of_session(scope)


def test_an_open_shell_ends_within_seconds_of_a_password_change(shared_portal, world) -> None:
    portal_world.report(world.job, 0)
    Capability.objects.create(user=get_user_model().objects.get(username="operator"), kind="shell", reason="on call")
    thief = signed_in("operator")
    shard = wakeups.client().pubsub()
    shard.subscribe(streams.channel("shard-1"))
    wakeups.client().hset(last_contact.key("holder", world.cell.id), str(world.machine.id), "shard-1")
    cookie = thief.cookies[settings.SESSION_COOKIE_NAME].value
    with connect(
        f"{shared_portal.replace('http', 'ws')}/ws/shell/cc/ubar/jfoo/0/",
        origin=shared_portal,
        additional_headers={"Cookie": f"{settings.SESSION_COOKIE_NAME}={cookie}"},
        open_timeout=WAIT_S,
    ) as socket:
        asked = [shard.get_message(timeout=WAIT_S) for _ in range(2)]
        assert [message["type"] for message in asked if message] == ["subscribe", "message"]
        assert change(signed_in("operator")).status_code == 302
        kind, reason = shell_frame_of(socket.recv(WAIT_S))
        assert (kind, reason) == (ShellFrame.FAILED, b"the session or token ended")
    shard.close()


def test_the_page_lists_the_tokens_that_keep_working(world) -> None:
    a_token("laptop")
    revoked = a_token("old one")[0]
    Token.objects.filter(pk=revoked.pk).update(revoked_at="2020-01-01T00:00:00Z")
    a_token("of another", of="owner")
    page = signed_in("operator").get(PAGE).content.decode()
    assert "laptop" in page
    assert "1 token gives access to your account without the password" in page
    assert 'name="revoke_tokens"' in page
    assert "old one" not in page
    assert "of another" not in page
    assert "revoke_tokens" not in signed_in("viewer").get(PAGE).content.decode()


def test_a_change_revokes_the_tokens_on_request(world) -> None:
    secrets = [a_token("laptop")[1], a_token("desk")[1], a_token("of another", of="owner")[1]]
    client = signed_in("operator")
    assert change(client, revoke_tokens="on").status_code == 302
    assert "2 of your tokens were revoked." in client.get("/").content.decode()
    answers = [
        Client(headers={"authorization": f"Bearer {secret}"}).get("/api/v1/cells/").status_code for secret in secrets
    ]
    assert answers == [401, 401, 200]
    assert Record.objects.filter(kind="token.revoked", actor="operator").count() == 2


def test_a_change_without_the_request_says_how_many_tokens_still_work(world) -> None:
    a_token("laptop")
    client = signed_in("operator")
    assert change(client).status_code == 302
    assert "1 of your tokens is still valid." in client.get("/").content.decode()
    assert not Token.objects.exclude(revoked_at=None).exists()


def test_a_wrong_old_password_changes_and_revokes_nothing(world) -> None:
    a_token("laptop")
    answer = change(signed_in("operator"), oldpassword="wrong", revoke_tokens="on")
    assert answer.status_code == 200
    assert not Token.objects.exclude(revoked_at=None).exists()
