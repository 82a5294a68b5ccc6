"""Tests of tokens that are issued with a token: who may issue them, how long they last, and that they end with it."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from quota.models import Membership, Record, Token
from quota.retention import forget_old
from quota.tenancy.authentication import principal_of_token
from quota.tenancy.service_accounts import service_account_create
from quota.tenancy.tokens import TOKEN_LASTS, token_issue, token_revoke
from quota.vocabulary.errors import Forbidden
from quota.vocabulary.permissions import GENERAL_SCOPES, Scope, system
from tests.integration import rows

pytestmark = pytest.mark.django_db
TOKENS = "/api/v1/tokens/"


@pytest.fixture
def ann():
    user = get_user_model().objects.create_user("ann", password="correct horse battery")
    Membership.objects.create(tenant=rows.a_tenant("ubar"), user=user, role="owner")
    return user


def issued(user, *scopes: Scope, name: str = "parent", **given) -> tuple[Token, str]:
    wanted = [scope.value for scope in scopes or GENERAL_SCOPES]
    return token_issue(principal=system("test"), user=user, name=name, scopes=wanted, **given)


def with_token(secret: str) -> Client:
    return Client(headers={"authorization": f"Bearer {secret}"})


def ask(client: Client, name: str = "child", **given):
    body = {"name": name, "scopes": ["read"], **given}
    return client.post(TOKENS, body, content_type="application/json")


def in_session(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize("scopes", [(Scope.READ,), (Scope.READ, Scope.WRITE)])
def test_a_token_without_scope_admin_issues_and_revokes_nothing(ann, scopes) -> None:
    victim, _ = issued(ann, name="victim")
    client = with_token(issued(ann, *scopes)[1])
    refused = ask(client)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "scope admin" in refused.json()["detail"]
    assert client.delete(f"{TOKENS}{victim.key}/").status_code == 403
    victim.refresh_from_db()
    assert (victim.revoked_at, Token.objects.count()) == (None, 2)
    assert {row["name"] for row in client.get(TOKENS).json()["results"]} == {"victim", "parent"}


def test_a_token_may_revoke_itself_whatever_its_scope(ann) -> None:
    token, secret = issued(ann, Scope.READ)
    client = with_token(secret)
    assert client.delete(f"{TOKENS}{token.key}/").status_code == 200
    assert client.get(TOKENS).status_code == 401


def test_a_session_issues_tokens_without_a_parent(ann) -> None:
    client = in_session(ann)
    answer = client.post("/tokens/", {"name": "mine", "scopes": ["read"], "days": ""})
    assert answer.status_code == 201
    token = Token.objects.get(name="mine")
    assert (token.parent, token.expires_at) == (None, None)


def test_a_child_has_an_end_and_records_its_parent(ann) -> None:
    parent, secret = issued(ann)
    answer = ask(with_token(secret))
    assert answer.status_code == 201, answer.content
    assert answer.json()["token"]["parent"] == parent.key
    child = Token.objects.get(name="child")
    assert child.parent == parent
    assert abs(child.expires_at - timezone.now() - TOKEN_LASTS) < dt.timedelta(minutes=1)
    assert Record.objects.filter(kind="token.issued").latest("revision").data["parent"] == parent.key


def test_a_child_never_outlives_its_parent(ann) -> None:
    soon = timezone.now() + dt.timedelta(hours=1)
    parent, secret = issued(ann, expires_at=soon)
    client = with_token(secret)
    assert ask(client).status_code == 201
    assert Token.objects.get(name="child").expires_at == parent.expires_at
    late = ask(client, expires_at=(soon + dt.timedelta(days=1)).isoformat())
    assert (late.status_code, late.json()["code"]) == (403, "outlives-its-parent")
    assert list(late.json()["fields"]) == ["expires_at"]


def test_revoking_a_token_ends_all_tokens_below_it(ann) -> None:
    parent, secret = issued(ann)
    child = ask(with_token(secret), scopes=["read", "admin"]).json()["secret"]
    grandchild = ask(with_token(child), name="grandchild").json()["secret"]
    other = issued(ann, name="other")[1]
    assert with_token(grandchild).get(TOKENS).status_code == 200
    assert in_session(ann).post(f"/tokens/{parent.key}/revoke/").status_code == 302
    assert [with_token(one).get(TOKENS).status_code for one in (secret, child, grandchild, other)] == [
        401,
        401,
        401,
        200,
    ]
    ended = Record.objects.filter(kind="token.revoked").values_list("data__key", flat=True)
    assert set(ended) == set(Token.objects.exclude(name="other").values_list("key", flat=True))


def test_a_service_accounts_token_ends_with_the_token_that_issued_it(ann) -> None:
    tenant = ann.memberships.get().tenant
    account = service_account_create(principal=system("test"), tenant=tenant, name="ci", role="operator")
    soon = timezone.now() + dt.timedelta(hours=1)
    parent, secret = issued(ann, expires_at=soon)
    path = "/api/v1/tenants/ubar/service-accounts/ci/tokens/"
    made = with_token(secret).post(path, {"name": "ci"}, content_type="application/json")
    assert made.status_code == 201, made.content
    token = Token.objects.get(user=account.user)
    assert (token.parent, token.expires_at) == (parent, parent.expires_at)
    token_revoke(principal=system("test"), key=parent.key)
    assert with_token(made.json()["secret"]).get(TOKENS).status_code == 401


def test_lists_show_each_child_below_its_parent(ann) -> None:
    _, secret = issued(ann)
    issued(ann, name="other")
    ask(with_token(secret))
    page = in_session(ann).get("/tokens/").content.decode()
    assert page.index("other") < page.index("parent") < page.index("issued by token parent")
    listed = {row["name"]: row["parent"] for row in with_token(secret).get(TOKENS).json()["results"]}
    assert listed == {"parent": None, "other": None, "child": Token.objects.get(name="parent").key}


def test_lists_of_tokens_ask_the_same_number_of_queries(ann, django_assert_max_num_queries) -> None:
    secret = issued(ann)[1]
    for number in range(10):
        ask(with_token(secret), name=f"child {number}")
    client = in_session(ann)
    client.get("/tokens/")
    with django_assert_max_num_queries(12):
        client.get("/tokens/")


def test_a_family_that_ended_long_ago_is_forgotten_together(ann) -> None:
    parent, secret = issued(ann)
    ask(with_token(secret))
    token_revoke(principal=system("test"), key=parent.key)
    Token.objects.update(revoked_at=timezone.now() - dt.timedelta(days=500))
    assert forget_old() == {"tokens": 2}


@pytest.mark.django_db(transaction=True)
def test_a_token_that_is_revoked_while_it_issues_another_leaves_none(ann) -> None:
    """A token is revoked while a request issues another token with it. The request waits, and is then rejected."""
    parent, secret = issued(ann)
    principal = principal_of_token(secret)[1]
    outcome: list[str] = []

    def issue() -> None:
        try:
            token_issue(principal=principal, user=ann, name="child", scopes=["read"])
            outcome.append("issued")
        except Forbidden as error:
            outcome.append(error.detail)
        finally:
            connection.close()

    issuing = threading.Thread(target=issue)
    with transaction.atomic():
        token_revoke(principal=system("test"), key=parent.key)
        issuing.start()
        issuing.join(0.5)
        assert not outcome
    issuing.join(10)
    assert "was revoked" in outcome[0]
    assert not Token.objects.filter(revoked_at=None).exists()
