"""Tests of the WebSocket of shells, without a machine: who may open it, from which pages, and what is rejected."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from borglet.messages import ShellFrame, shell_frame_of
from quota.models import Capability
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import Scope, system
from scheduling.models import ShellSession
from tests.integration import portal_world
from tests.integration.link_world import until
from tests.integration.portal_world import signed_in
from tests.integration.world import a_user

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_S = 40.0
DOOR = "ws/shell/cc/ubar/jfoo/0/"
NOT_CONNECTED = "not connected to a link shard"


@pytest.fixture
def portal(shared_portal: str) -> str:
    return shared_portal


@pytest.fixture
def world():
    made = portal_world.make()
    portal_world.report(made.job, 0)
    for name in ("operator", "owner", "viewer", "stranger"):
        Capability.objects.create(user=a_user(name), kind="shell", reason="on call")
    return made


def answer(portal: str, path: str = DOOR, *, client: Client | None = None, token: str = "", **more: Any):
    """Open the WebSocket of shells, and return the last frame that arrives and the close code."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if client is not None:
        headers["Cookie"] = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
    address = f"{portal.replace('http', 'ws')}/{path}"
    more.setdefault("origin", portal)
    with connect(address, additional_headers=headers, open_timeout=WAIT_S, **more) as socket:
        last = b""
        try:
            while True:
                last = socket.recv(WAIT_S)
        except ConnectionClosed as closed:
            return (*shell_frame_of(last), closed.rcvd.code if closed.rcvd else 0)


def closed_all() -> None:
    """Wait until all shell sessions are stored as closed. The portal stores this after it has closed the socket."""
    until(lambda: not ShellSession.objects.exclude(state="closed").exists(), what="sessions closed")


def token_of(name: str, *scopes: Scope) -> str:
    return token_issue(principal=system("test"), user=a_user(name), name="t", scopes=[*scopes])[1]


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("operator", 4503, NOT_CONNECTED),
        ("owner", 4503, NOT_CONNECTED),
        ("sre", 4503, NOT_CONNECTED),
        ("viewer", 4403, "may not change jobs"),
        ("stranger", 4404, "no job"),
        ("", 4401, "sign in, or"),
    ],
)
def test_a_session_opens_a_shell_for_members_with_the_capability(portal, world, name: str, code: int, why: str) -> None:
    kind, reason, closed = answer(portal, client=signed_in(name) if name else None)
    assert (kind, closed) == (ShellFrame.FAILED, code)
    assert why in reason.decode()
    closed_all()
    assert ShellSession.objects.count() == (code == 4503), "who was let in is in the records, and only they"


@pytest.mark.parametrize(
    ("name", "scopes", "code"),
    [
        ("operator", [Scope.READ, Scope.WRITE], 4503),
        ("operator", [Scope.READ], 4403),
        ("viewer", [Scope.READ, Scope.WRITE, Scope.ADMIN], 4403),
        ("stranger", [Scope.READ, Scope.WRITE], 4404),
    ],
)
def test_a_token_opens_a_shell_with_the_right_scope(portal, world, name: str, scopes: list[Scope], code: int) -> None:
    assert answer(portal, token=token_of(name, *scopes))[2] == code
    closed_all()


def test_a_token_that_is_none_is_not_helped_by_a_session(portal, world) -> None:
    assert answer(portal, token="borg_no_token", client=signed_in("operator"))[2] == 4401


def test_pages_of_other_sites_are_turned_away_before_anything(portal, world) -> None:
    beside = portal.rpartition(":")[0]  # what else runs on this host, such as a task, gets its cookies too
    for origin in ("https://elsewhere.example", None, f"{beside}:1", beside, "null"):
        with pytest.raises(InvalidStatus) as refused:
            answer(portal, client=signed_in("operator"), origin=origin)
        assert refused.value.response.status_code == 403
    assert not ShellSession.objects.exists()


@pytest.mark.parametrize(
    ("path", "code", "why"),
    [
        ("ws/shell/cc/ubar/jfoo/99/", 4404, "no task"),
        ("ws/shell/cc/ubar/nothing/0/", 4404, "no job"),
        ("ws/shell/cc/ubar/jfoo/1/", 4409, "is pending"),
        (DOOR + "?rows=many", 4422, "rows"),
        (DOOR + "?rows=0", 4422, "rows"),
        (DOOR + "?command=%00", 4422, "command"),
        (DOOR + "?uid=zz", 4404, "uid"),
    ],
)
def test_bad_requests_are_rejected_with_the_reason(portal, world, path: str, code: int, why: str) -> None:
    _, reason, closed = answer(portal, path, client=signed_in("operator"))
    assert closed == code
    assert why in reason.decode()
    assert not ShellSession.objects.exists()
