"""Tests of the pages of organisations and teams: forms, rejections, and joining by invitation."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.core.cache import cache
from django.test import Client

from quota.models import CapabilityRequest, Invitation, Membership, Record, ServiceAccount, Tenant, Token
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.invitations import invitation_send
from quota.tenancy.service_accounts import service_account_create
from quota.tenancy.tenants import tenant_create
from quota.vocabulary.permissions import Role
from tests.integration import rows, world

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"
HERE = "/tenants/ubar/"


@pytest.fixture(autouse=True)
def _no_rate_limits() -> None:
    cache.clear()


@pytest.fixture
def tenant() -> Tenant:
    rows.a_cell()
    return rows.a_tenant("ubar")


def browser(name: str, *, tenant: Tenant | None = None, role: Role = Role.OWNER, sre: bool = False) -> Client:
    client = Client()
    user = world.a_user(name, tenant=tenant, role=role, sre=sre)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def ann(tenant) -> Client:
    return browser("ann", tenant=tenant)


def test_an_owner_makes_a_team_and_sets_roles(ann, tenant) -> None:
    assert ann.post(HERE, {"do": "team", "name": "web", "title": "Web"}).status_code == 302
    world.a_user("bob", tenant=Tenant.objects.get(name="web"))
    assert ann.post("/tenants/web/", {"do": "role", "user": "bob", "role": "operator"}).status_code == 302
    assert "your role: operator" in browser("bob").get("/tenants/web/").text
    text = ann.get("/tenants/web/").text
    assert "owner through the organisation ubar" in text
    assert ann.post("/tenants/web/", {"do": "remove", "user": "bob"}).status_code == 302
    assert not Membership.objects.filter(tenant__name="web").exists()
    given = {"do": "settings", "title": "U", "contact": "", "time_zone": "Asia/Tokyo", "task_api": "read"}
    assert ann.post(HERE, given).status_code == 302
    assert Tenant.objects.get(name="ubar").time_zone == "Asia/Tokyo"
    wrong = ann.post(HERE, {**given, "time_zone": "Mars"})
    assert (wrong.status_code, "not a time zone" in wrong.text) == (422, True)


def test_a_refusal_stays_on_the_page_with_its_cure(ann) -> None:
    answer = ann.post(HERE, {"do": "role", "user": "ann", "role": "viewer"})
    assert (answer.status_code, "make another member an owner first" in answer.text) == (409, True)
    assert ann.post(HERE, {"do": "role", "user": "nobody", "role": "viewer"}).status_code == 403
    assert ann.post(HERE, {"do": "remove", "user": "nobody"}).status_code == 404
    assert ann.post(HERE, {"do": "dance"}).status_code == 422
    assert ann.post(HERE + "leave/").status_code == 409


def test_other_members_see_no_forms_and_their_posts_change_nothing(tenant, ann) -> None:
    bob = browser("bob", tenant=tenant, role=Role.VIEWER)
    assert "Create a team" not in bob.get(HERE).text
    before = Record.objects.count()
    for path, given in (
        (HERE, {"do": "team", "name": "x"}),
        (HERE + "invitations/", {"email": "a@b.org", "role": "owner"}),
        (HERE + "service-accounts/", {"name": "x", "role": "viewer"}),
    ):
        assert bob.post(path, given).status_code == 403
    for path in ("invitations/", "records/"):
        assert bob.get(HERE + path).status_code == 403
    assert bob.get(HERE + "service-accounts/").status_code == 200
    assert Record.objects.count() == before
    assert bob.post(HERE + "leave/").status_code == 302
    assert bob.get(HERE).status_code == 404


def invite(client: Client, email: str = "new@example.org") -> str:
    answer = client.post(HERE + "invitations/", {"email": email, "role": "operator"})
    assert answer.status_code == 201, answer.text
    assert email in mail.outbox[-1].to
    found = re.search(r"/invitations/[\w-]+/", answer.text)
    assert found is not None
    return found[0]


def test_somebody_who_is_signed_in_joins(ann) -> None:
    path = invite(ann)
    bob = browser("bob")
    assert "Join as user bob" in bob.get(path).text
    assert not Membership.objects.filter(user__username="bob").exists(), "to open a link changes nothing"
    assert bob.post(path).status_code == 302
    assert bob.get(HERE).status_code == 200
    assert bob.post(path).status_code == 404
    assert "accepted" in ann.get(HERE + "invitations/").text


def test_somebody_new_makes_an_account_and_joins_with_it(ann) -> None:
    path = invite(ann)
    new = Client()
    assert "Create an account" in new.get(path).text
    page = new.get("/accounts/signup/").text
    assert "With this account, you become a member of the tenant ubar with the role operator" in page
    given = {"username": "carol", "password1": PASSWORD, "password2": PASSWORD}
    wrong = new.post("/accounts/signup/", {**given, "username": "ci@ubar"})
    assert "must not contain @" in wrong.text
    assert new.post("/accounts/signup/", given).status_code == 302
    carol = get_user_model().objects.get(username="carol")
    assert (carol.email, carol.is_staff) == ("new@example.org", False)
    assert Membership.objects.get(user=carol).role == "operator"
    assert new.get(HERE).status_code == 200
    assert Record.objects.get(kind="invitation.accepted").actor == "carol"


def test_without_an_open_invitation_nobody_signs_up(ann) -> None:
    given = {"username": "eve", "password1": PASSWORD, "password2": PASSWORD}
    stranger = Client()
    assert stranger.get("/accounts/signup/").status_code == 403
    assert stranger.post("/accounts/signup/", given).status_code == 403
    path = invite(ann)
    stranger.get(path)
    key = Invitation.objects.get().key
    assert ann.post(f"{HERE}invitations/{key}/withdraw/").status_code == 302
    assert stranger.post("/accounts/signup/", given).status_code == 403
    assert stranger.get(path).status_code == 404
    assert not get_user_model().objects.filter(username="eve").exists()


def test_a_link_that_two_have_open_makes_one_account(ann) -> None:
    path = invite(ann)
    first, second = Client(), Client()
    for client in (first, second):
        client.get(path)
    given = {"password1": PASSWORD, "password2": PASSWORD}
    assert first.post("/accounts/signup/", {**given, "username": "first"}).status_code == 302
    assert second.post("/accounts/signup/", {**given, "username": "second"}).status_code == 403
    assert not get_user_model().objects.filter(username="second").exists()


def test_an_anonymous_post_to_a_link_joins_nobody(ann) -> None:
    path = invite(ann)
    assert Client().post(path).status_code == 200
    assert Invitation.objects.get().accepted_at is None


def test_a_service_account_gets_a_token_and_never_signs_in(ann) -> None:
    answer = ann.post(HERE + "service-accounts/", {"name": "ci", "role": "operator", "description": "builds"})
    path = answer["Location"]
    assert path == HERE + "service-accounts/ci/"
    issued = ann.post(path, {"do": "token", "name": "runner", "scopes": ["read"], "days": "7"})
    assert issued.status_code == 201
    assert "borg_" in issued.text
    assert "borg_" not in ann.get(path).text
    assert ann.post(path, {"do": "token", "name": "x", "scopes": ["read"], "days": ""}).status_code == 422
    account = ServiceAccount.objects.get()
    account.user.set_password(PASSWORD)  # somebody might do this in the database
    account.user.save()
    refused = Client().post("/accounts/login/", {"login": "ci@ubar", "password": PASSWORD})
    assert (refused.status_code, "never signs in" in refused.text) == (403, True)
    body = {"username": "ci@ubar", "password": PASSWORD, "name": "x"}
    assert Client().post("/api/v1/login/", body, content_type="application/json").status_code == 403
    assert ann.post(path, {"do": "revoke", "key": Token.objects.get().key}).status_code == 302
    assert Token.objects.get().revoked_at is not None
    ann.post(path, {"do": "disable"})
    assert "disabled" in ann.get(path).text
    assert ann.post(path, {"do": "remove"}).status_code == 302
    assert not ServiceAccount.objects.exists()


def test_a_capability_is_asked_for(tenant, ann) -> None:
    bob = browser("bob", tenant=tenant, role=Role.OPERATOR)
    path = HERE + "capabilities/"
    given = {"kind": "shell", "cell": "cc", "days": "7", "reason": "debugging"}
    assert bob.post(path, {**given, "user": "bob"}).status_code == 302
    assert bob.post(path, {**given, "user": "ann"}).status_code == 403
    assert bob.post(path, {**given, "days": "8"}).status_code == 422
    asked = CapabilityRequest.objects.get()
    assert (asked.user.get_username(), asked.state) == ("bob", "open")
    assert "debugging" in ann.get(path).text
    assert "debugging" in bob.get(path).text


def test_what_happened_is_filtered_and_paged(tenant, ann) -> None:
    boss = principal_of_user(world.a_user("ann"))
    for number in range(60):
        invitation_send(principal=boss, tenant=tenant, email=f"n{number}@example.org", role="viewer")
    service_account_create(principal=boss, tenant=tenant, name="ci", role="viewer")
    rows.a_tenant("other")
    tenant_create(principal=rows.ME, name="elsewhere", parent="other")
    path = HERE + "records/"
    first = ann.get(path).text
    assert "The service account ci@ubar was created with the role viewer." in first
    assert "elsewhere" not in first
    older = re.search(r"before=(\d+)", first)
    assert older is not None
    assert "n0@example.org" in ann.get(f"{path}?before={older[1]}").text
    assert "n59@" not in ann.get(f"{path}?kind=service-account").text
    assert "No record matches" in ann.get(f"{path}?actor=nobody").text
    assert "No record matches" in ann.get(f"{path}?until=2020-01-01").text
    for wrong in ("since=x", "since=0001-01-01", "until=2026-99-01"):
        assert ann.get(f"{path}?{wrong}").status_code == 422
    assert browser("root", sre=True).get(path).status_code == 200
