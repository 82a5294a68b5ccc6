"""Tests of the rotation of tokens: the new token, the time with both, who may rotate, and tokens that always end."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.utils import timezone

from quota.models import Membership, Record, Token
from quota.tenancy.service_accounts import service_account_create, service_account_token
from quota.tenancy.tokens import TOKEN_LASTS, token_issue
from quota.vocabulary.permissions import GENERAL_SCOPES, Scope, system
from tests.integration import portal_world, rows

pytestmark = pytest.mark.django_db
TOKENS = "/api/v1/tokens/"
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


@pytest.fixture
def ann():
    user = portal_world.person("ann")
    Membership.objects.create(tenant=rows.a_tenant("ubar"), user=user, role="owner")
    return user


def issued(user, *scopes: Scope, days: int | None = 30, **given) -> tuple[Token, str]:
    end = None if days is None else timezone.now() + days * DAY
    wanted = [scope.value for scope in scopes or (Scope.READ,)]
    return token_issue(principal=system("test"), user=user, name="ci", scopes=wanted, expires_at=end, **given)


def with_token(secret: str) -> Client:
    return Client(headers={"authorization": f"Bearer {secret}"})


def rotate(client: Client, key: str, **body):
    return client.post(f"{TOKENS}{key}/rotate/", body, content_type="application/json")


def near(time: dt.datetime | None, expected: dt.datetime) -> bool:
    return time is not None and abs(time - expected) < dt.timedelta(minutes=1)


def test_a_token_rotates_itself_and_both_are_valid_for_the_chosen_time(ann) -> None:
    old, secret = issued(ann, Scope.READ, Scope.WRITE)
    Token.objects.filter(pk=old.pk).update(created_at=timezone.now() - 20 * DAY, expires_at=timezone.now() + 10 * DAY)
    answer = rotate(with_token(secret), old.key, overlap_hours=6)
    assert answer.status_code == 201, answer.content
    new = Token.objects.get(key=answer.json()["token"]["key"])
    old.refresh_from_db()
    assert (new.name, new.scopes, new.user, new.tenant) == ("ci", ["read", "write"], ann, None)
    assert near(new.expires_at, timezone.now() + 30 * DAY), "the new token has the duration of the old one"
    assert near(old.expires_at, timezone.now() + 6 * HOUR)
    assert old.successor == new
    for valid in (secret, answer.json()["secret"]):
        assert with_token(valid).get(TOKENS).status_code == 200
    assert Record.objects.get(kind="token.rotated").data["successor"] == new.key


def test_without_overlap_the_old_token_ends_immediately(ann) -> None:
    old, secret = issued(ann)
    client = with_token(secret)
    assert rotate(client, old.key, overlap_hours=0).status_code == 201
    assert client.get(TOKENS).status_code == 401


@pytest.mark.parametrize("hours", [-1, 169, "x"])
def test_an_overlap_out_of_range_changes_nothing(ann, hours) -> None:
    old, secret = issued(ann)
    refused = rotate(with_token(secret), old.key, overlap_hours=hours)
    assert (refused.status_code, list(refused.json()["fields"])) == (422, ["overlap_hours"])
    assert Token.objects.get().successor is None


def test_a_successor_that_was_never_used_is_replaced(ann) -> None:
    old, secret = issued(ann)
    client = with_token(secret)
    lost = rotate(client, old.key).json()["token"]["key"]
    found = rotate(client, old.key).json()
    assert Token.objects.get(key=lost).revoked_at is not None
    assert with_token(found["secret"]).get(TOKENS).status_code == 200
    again = rotate(client, old.key)
    assert (again.status_code, again.json()["code"]) == (409, "rotated-already")
    assert found["token"]["key"] in again.json()["detail"]


@pytest.mark.parametrize("days", [90, None])
def test_a_second_rotation_after_a_lost_answer_gives_the_same_duration(ann, days) -> None:
    old, secret = issued(ann, days=days)
    rotate(with_token(secret), old.key)
    end = rotate(with_token(secret), old.key).json()["token"]["expires_at"]
    if days is None:
        assert end is None
    else:
        assert near(dt.datetime.fromisoformat(end), timezone.now() + days * DAY)


def test_children_of_the_old_token_end_with_it(ann) -> None:
    old, secret = issued(ann, *GENERAL_SCOPES)
    client = with_token(secret)
    child = client.post(TOKENS, {"name": "child", "scopes": ["admin"]}, content_type="application/json").json()
    grandchild = with_token(child["secret"]).post(TOKENS, {"name": "below"}, content_type="application/json")
    assert grandchild.status_code == 403, "the child has no scope write"
    assert rotate(client, old.key, overlap_hours=1).status_code == 201
    assert near(Token.objects.get(key=child["token"]["key"]).expires_at, timezone.now() + HOUR)


def test_a_token_that_another_one_rotates_is_its_child(ann) -> None:
    """Otherwise a token that ends soon could get one that lasts for ever."""
    other, _ = issued(ann, Scope.READ, days=None)
    admin, secret = issued(ann, Scope.READ, Scope.ADMIN, days=1)
    answer = rotate(with_token(secret), other.key)
    assert answer.status_code == 201, answer.content
    new = Token.objects.get(key=answer.json()["token"]["key"])
    assert (new.parent, new.expires_at) == (admin, admin.expires_at)
    wide, _ = issued(ann, *GENERAL_SCOPES)
    assert rotate(with_token(secret), wide.key).json()["code"] == "scopes-too-wide"


def test_a_token_without_scope_admin_rotates_only_itself(ann) -> None:
    other, _ = issued(ann)
    refused = rotate(with_token(issued(ann, Scope.READ, Scope.WRITE)[1]), other.key)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_nobody_rotates_the_token_of_another_person(ann) -> None:
    """An SRE may revoke it, but would act as this person with the new secret."""
    portal_world.person("sre", is_staff=True)
    token, _ = issued(ann)
    assert rotate(portal_world.signed_in("sre"), token.key).status_code == 404


def test_an_owner_and_a_program_rotate_the_token_of_a_service_account(ann) -> None:
    tenant, me = ann.memberships.get().tenant, system("test")
    account = service_account_create(principal=me, tenant=tenant, name="robot", role="operator")
    token, secret = service_account_token(principal=me, account=account, name="ci")
    first = rotate(with_token(secret), token.key)
    assert first.status_code == 201, first.content
    second = rotate(portal_world.signed_in("ann"), first.json()["token"]["key"])
    assert (second.status_code, second.json()["token"]["user"]) == (201, "robot@ubar")
    stranger = portal_world.person("stranger")
    Membership.objects.create(tenant=rows.a_tenant("other"), user=stranger, role="owner")
    assert rotate(portal_world.signed_in("stranger"), second.json()["token"]["key"]).status_code == 404


def test_revoking_a_replaced_token_warns_that_its_successor_stays(ann) -> None:
    """A thief who has rotated a stolen token keeps the new one."""
    old, secret = issued(ann)
    new = rotate(with_token(secret), old.key).json()["token"]["key"]
    page = portal_world.signed_in("ann").post(f"/tokens/{old.key}/revoke/", follow=True).content.decode()
    assert f"Token {new}, which replaced it, is not revoked by this." in page


def test_an_ended_token_is_not_rotated(ann) -> None:
    old, _ = issued(ann)
    Token.objects.filter(pk=old.pk).update(expires_at=timezone.now() - HOUR)
    refused = rotate(portal_world.signed_in("ann"), old.key)
    assert (refused.status_code, refused.json()["code"]) == (409, "token-ended")


def test_a_dry_run_shows_no_secret_and_rotates_nothing(ann) -> None:
    old, secret = issued(ann)
    answer = with_token(secret).post(f"{TOKENS}{old.key}/rotate/?dry_run=1", {}, content_type="application/json")
    assert (answer.status_code, answer.json()["secret"]) == (201, "")
    assert Token.objects.get().successor is None


def test_tokens_end_after_90_days_unless_the_request_says_otherwise(ann) -> None:
    client = portal_world.signed_in("ann")
    body = {"username": "ann", "password": portal_world.PASSWORD, "name": "laptop"}
    for answer in (
        client.post(TOKENS, {"name": "a"}, content_type="application/json"),
        Client().post("/api/v1/login/", body, content_type="application/json"),
    ):
        assert near(dt.datetime.fromisoformat(answer.json()["token"]["expires_at"]), timezone.now() + TOKEN_LASTS)
    endless = client.post(TOKENS, {"name": "b", "expires_at": None}, content_type="application/json")
    assert endless.json()["token"]["expires_at"] is None


def test_the_limit_of_an_installation_holds_for_new_tokens_and_rotations(ann, settings) -> None:
    old, secret = issued(ann, days=None)
    settings.BORG_TOKEN_DAYS = 7
    client = portal_world.signed_in("ann")
    endless = client.post(TOKENS, {"name": "a", "expires_at": None}, content_type="application/json")
    rotated = rotate(with_token(secret), old.key)
    body = {"username": "ann", "password": portal_world.PASSWORD, "name": "laptop"}
    login = Client().post("/api/v1/login/", body, content_type="application/json")
    for answer in (endless, rotated, login):
        assert near(dt.datetime.fromisoformat(answer.json()["token"]["expires_at"]), timezone.now() + 7 * DAY)
    later = {"name": "a", "expires_at": (timezone.now() + 8 * DAY).isoformat()}
    refused = client.post(TOKENS, later, content_type="application/json")
    assert (refused.status_code, list(refused.json()["fields"])) == (422, ["expires_at"])


def test_the_page_rotates_a_token_and_shows_the_new_secret_once(ann) -> None:
    old, _ = issued(ann)
    client = portal_world.signed_in("ann")
    answer = client.post("/tokens/", {"do": "rotate", "key": old.key, "hours": "24"})
    assert answer.status_code == 201
    assert f"borg_{Token.objects.exclude(pk=old.pk).get().key}_" in answer.content.decode()
    shown = client.get("/tokens/").content.decode()
    assert "replaced by" in shown
    assert shown.count('<option value="24" selected>24 hours</option>') == 2, "the old token is still valid"
    assert shown.count('<option value="1">1 hour</option>') == 2
    assert "borg_" not in shown.replace("Bearer borg_…", "")
