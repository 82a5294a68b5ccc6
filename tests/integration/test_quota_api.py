"""Tests of the REST API of sign-in, tokens, tenants, members, bands and grants."""

from __future__ import annotations

import datetime as dt
from functools import partial

import pytest
from allauth.mfa.models import Authenticator
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from quota.models import CellCapacity, Membership, Record, Tenant, Token
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import GENERAL_SCOPES, Scope, system
from tests.integration import rows

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def _no_rate_limits() -> None:
    cache.clear()


@pytest.fixture
def world():
    rows.a_cell()
    tenant = rows.a_tenant("ubar")
    rows.a_tenant("other")
    users = get_user_model().objects
    owner = users.create_user("ann", password=PASSWORD)
    Membership.objects.create(tenant=tenant, user=owner, role="owner")
    users.create_user("root", password=PASSWORD, is_staff=True, is_superuser=True)
    return tenant


def bearer(username: str, *, scopes=GENERAL_SCOPES, tenant=None) -> Client:
    user = get_user_model().objects.get(username=username)
    _, secret = token_issue(
        principal=system("test"), user=user, name="test", scopes=[s.value for s in scopes], tenant=tenant
    )
    return Client(headers={"authorization": f"Bearer {secret}"})


def login(**given):
    body = {"username": "ann", "password": PASSWORD, "name": "laptop", **given}
    return Client().post("/api/v1/login/", body, content_type="application/json")


def test_a_password_buys_a_token_whose_secret_is_not_kept(world) -> None:
    answer = login()
    assert answer.status_code == 201, answer.content
    secret = answer.json()["secret"]
    assert secret.startswith("borg_")
    assert not Token.objects.filter(digest__contains=secret[-20:]).exists()
    me = Client(headers={"authorization": f"Bearer {secret}"})
    assert [t["name"] for t in me.get("/api/v1/tenants/").json()["results"]] == ["ubar"]


@pytest.mark.parametrize(
    "given, status, field",
    [
        ({"password": "wrong"}, 401, None),
        ({"scopes": ["everything"]}, 422, "scopes"),
        ({"name": ""}, 422, "name"),
        ({"tenant": "other"}, 404, "tenant"),
        ({"colour": "blue"}, 422, "colour"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, 422, "expires_at"),
    ],
)
def test_a_bad_sign_in_names_the_field_and_makes_nothing(world, given, status, field) -> None:
    answer = login(**given)
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    if field:
        assert field in answer.json()["fields"]
    assert not Token.objects.exists()


def test_guessing_passwords_is_slowed_down(world) -> None:
    codes = [login(password="wrong").status_code for _ in range(12)]
    assert codes[-1] == 429


@pytest.mark.parametrize("secret", ["nonsense", "borg_abc_def", ""])
def test_a_token_that_proves_nothing_is_refused(world, secret) -> None:
    answer = Client(headers={"authorization": f"Bearer {secret}"}).get("/api/v1/tenants/")
    assert answer.status_code == 401
    assert "WWW-Authenticate" in answer


def test_without_a_token_nothing_is_shown(world) -> None:
    assert Client().get("/api/v1/tenants/").status_code == 401


def test_revoked_and_expired_tokens_say_so(world) -> None:
    client = bearer("ann")
    key = client.get("/api/v1/tokens/").json()["results"][0]["key"]
    assert client.delete(f"/api/v1/tokens/{key}/").status_code == 200
    answer = client.get("/api/v1/tokens/")
    assert (answer.status_code, "revoked" in answer.json()["detail"]) == (401, True)
    client = bearer("ann")
    Token.objects.filter(revoked_at=None).update(expires_at=timezone.now() - dt.timedelta(minutes=1))
    assert "expired" in client.get("/api/v1/tokens/").json()["detail"]


def test_another_persons_token_can_not_be_revoked(world) -> None:
    bearer("root")
    key = Token.objects.get(user__username="root").key
    assert bearer("ann").delete(f"/api/v1/tokens/{key}/").status_code == 404
    assert Token.objects.get(key=key).revoked_at is None


def test_a_token_can_not_make_a_wider_one(world) -> None:
    admin = bearer("ann", scopes=[Scope.READ, Scope.ADMIN])
    answer = admin.post("/api/v1/tokens/", {"name": "x", "scopes": ["write"]}, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (403, "scopes-too-wide")


def test_owners_set_members_and_others_do_not(world) -> None:
    bob = get_user_model().objects.create_user("bob", password=PASSWORD)
    Membership.objects.create(tenant=world, user=bob, role="viewer")
    put = {"data": {"role": "operator"}, "content_type": "application/json"}
    assert bearer("ann").put("/api/v1/tenants/ubar/members/bob/", **put).status_code == 200
    assert bearer("bob").put("/api/v1/tenants/ubar/members/bob/", **put).status_code == 403
    assert bearer("bob").get("/api/v1/tenants/other/").status_code == 404
    record = Record.objects.order_by("-revision").filter(kind="member.set").first()
    assert (record.tenant, record.actor, record.data["role"]) == ("ubar", "ann", "operator")


def test_quota_is_granted_by_an_sre_and_shown_to_the_tenant(world) -> None:
    CellCapacity.objects.create(cell="cc", capacity=list(rows.LARGE), revision=1)
    body = {"tenant": "ubar", "cell": "cc", "band": "production", "amounts": {"cpu": "2500m", "ram": "1Gi"}}
    assert bearer("ann").post("/api/v1/quota/grants/", body, content_type="application/json").status_code == 403
    answer = bearer("root").post("/api/v1/quota/grants/", body, content_type="application/json")
    assert answer.status_code == 201, answer.content
    (standing,) = bearer("ann").get("/api/v1/quota/").json()
    assert (standing["granted"]["cpu"], standing["granted"]["ram"]) == (2500, 2**30)
    assert standing["used"]["cpu"] == 0


def test_more_than_is_left_is_granted_only_beyond_capacity_with_a_reason(world) -> None:
    CellCapacity.objects.create(cell="cc", capacity=[4000, 0, 0, 0, 0, 0], revision=1)
    body = {"tenant": "ubar", "cell": "cc", "band": "production", "amounts": {"cpu": 4}}
    post = partial(bearer("root").post, "/api/v1/quota/grants/", content_type="application/json")
    answer = post(body)
    assert (answer.status_code, answer.json()["code"]) == (422, "sold-out")
    assert answer.json()["figures"]["short"]["cpu"] == {"asked": 4000, "left": 3800, "short": 200}
    assert list(post(body | {"beyond_capacity": True}).json()["fields"]) == ["reason"]
    answer = post(body | {"beyond_capacity": True, "reason": "trial"})
    assert (answer.status_code, answer.json()["beyond_capacity"]) == (201, True)
    assert post(body | {"amounts": {"cpu": "3800m"}}).status_code == 201


@pytest.mark.parametrize(
    "change, field",
    [
        ({"amounts": {"cpu": "-1"}}, "amounts"),
        ({"amounts": {"gold": 1}}, "amounts"),
        ({"band": "noble"}, "band"),
        ({"tenant": "nobody"}, "tenant"),
    ],
)
def test_a_bad_grant_names_the_field(world, change, field) -> None:
    body = {"tenant": "ubar", "cell": "cc", "band": "production", "amounts": {"cpu": 1}, **change}
    answer = bearer("root").post("/api/v1/quota/grants/", body, content_type="application/json")
    assert answer.status_code in (404, 422)
    assert field in answer.json()["fields"]


def test_a_token_bound_to_a_tenant_sees_that_one_alone(world) -> None:
    answer = bearer("root", tenant=world).get("/api/v1/tenants/").json()
    assert [tenant["name"] for tenant in answer["results"]] == ["ubar"]


def test_an_address_made_up_by_the_client_does_not_slow_down_less(world) -> None:
    codes = [
        Client()
        .post(
            "/api/v1/login/",
            {"username": "ann", "password": "wrong", "name": "x"},
            content_type="application/json",
            headers={"X-Forwarded-For": f"10.0.0.{number}"},
        )
        .status_code
        for number in range(12)
    ]
    assert codes[-1] == 429


def test_a_password_alone_does_not_pass_a_second_factor(world) -> None:
    ann = get_user_model().objects.get(username="ann")
    Authenticator.objects.create(user=ann, type=Authenticator.Type.TOTP, data={"secret": "x"})
    answer = login()
    assert (answer.status_code, answer.json()["code"]) == (403, "second-factor-needed")
    assert not Token.objects.exists()


def test_a_token_of_one_tenant_revokes_none_of_another(world) -> None:
    other = Tenant.objects.get(name="other")
    root = get_user_model().objects.get(username="root")
    free, _ = token_issue(principal=system("test"), user=root, name="free", scopes=["read"])
    theirs, _ = token_issue(principal=system("test"), user=root, name="other", scopes=["read"], tenant=other)
    bound = bearer("root", tenant=world)
    for token in (free, theirs):
        assert bound.delete(f"/api/v1/tokens/{token.key}/").status_code == 404
    assert not Token.objects.filter(revoked_at__isnull=False).exists()


@pytest.mark.parametrize("path", ["/api/v1/quotas/", "/api/", "/v3/discovery:clusters"])
def test_an_address_that_leads_nowhere_is_a_document_for_programs(client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer["content-type"]) == (404, "application/problem+json")
    assert answer.json()["code"] == "not-found"
    assert client.get("/nowhere/")["content-type"].startswith("text/html")
