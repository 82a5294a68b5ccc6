"""Tests of membership: users become members only with their consent, and owners do not learn who has an account."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from quota.models import Membership, Tenant
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.invitations import invitation_accept, invitation_send
from quota.tenancy.members import InvitationNeeded, membership_set
from quota.tenancy.service_accounts import service_account_create
from quota.vocabulary.permissions import Role
from tests.integration import rows, world

pytestmark = pytest.mark.django_db
NAMES = ("bob", "nobody", "ci@other")
"""A person of no tenant, nobody, and a service account of another tenant."""


@pytest.fixture
def ubar() -> Tenant:
    tenant, other = rows.a_tenant("ubar"), rows.a_tenant("other")
    for role in Role:
        world.a_user(role.value, tenant=tenant, role=role)
    world.a_user("bob")
    world.a_user("root", sre=True)
    service_account_create(principal=rows.ME, tenant=other, name="ci", role="viewer")
    return tenant


def client_of(name: str) -> Client:
    return world.bearer(get_user_model().objects.get(username=name))


def in_session(name: str) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.get(username=name))
    return client


def answer_for(client: Client, method: str, path: str, name: str, body: dict[str, str] | None = None):
    """Send a request. Return the status and the document of the answer, with NAME in the place of `name`."""
    answer = getattr(client, method)(path.format(name=name), data=body, content_type="application/json")
    document = json.loads(answer.content.decode().replace(name, "NAME")) if answer.content else {}
    document.pop("request_id", None)
    return answer.status_code, document


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("put", "/api/v1/tenants/ubar/members/{name}/", {"role": "viewer"}, 403),
        ("put", "/api/v1/tenants/ubar/members/{name}/", {"role": "king"}, 422),
        ("delete", "/api/v1/tenants/ubar/members/{name}/", None, 404),
    ],
)
def test_owners_get_the_same_answer_for_known_and_unknown_names(ubar, method, path, body, status) -> None:
    owner = client_of("owner")
    answers = [answer_for(owner, method, path, name, body) for name in NAMES]
    assert answers[0][0] == status
    assert answers.count(answers[0]) == len(NAMES), answers
    assert Membership.objects.filter(tenant=ubar).count() == len(Role)


@pytest.mark.parametrize("given", [{}, {"reason": "x" * 501}, {"until": "2001-01-01T00:00:00Z"}])
def test_asking_for_a_capability_tells_nothing_about_names(ubar, given) -> None:
    owner, path = client_of("owner"), "/api/v1/capabilities/requests/"
    answers = []
    for name in NAMES:
        body = {"tenant": "ubar", "user": name, "kind": "shell", "reason": "on call", **given}
        answers.append(answer_for(owner, "post", path, name, body))
    assert answers.count(answers[0]) == len(NAMES), answers
    assert answers[0][0] in (404, 422)


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.OWNER])
def test_other_members_get_the_same_answer_for_all_names(ubar, role) -> None:
    client, path = client_of(role.value), "/api/v1/tenants/ubar/members/{name}/"
    for method, body in (("put", {"role": "viewer"}), ("delete", None)):
        answers = [answer_for(client, method, path, name, body) for name in NAMES]
        assert answers[0][0] == 403
        assert answers.count(answers[0]) == len(answers), answers


def test_the_rejection_names_the_invitation_and_an_invitation_works(ubar) -> None:
    refused = client_of("owner").put(
        "/api/v1/tenants/ubar/members/bob/", {"role": "operator"}, content_type="application/json"
    )
    assert (refused.status_code, refused.json()["code"]) == (403, "invitation-needed")
    assert refused.json()["figures"] == {"invitations": "/api/v1/tenants/ubar/invitations/"}
    owner, bob = (get_user_model().objects.get(username=name) for name in ("owner", "bob"))
    _, secret = invitation_send(
        principal=principal_of_user(owner), tenant=ubar, email="bob@example.org", role="operator"
    )
    invitation_accept(principal=principal_of_user(bob), user=bob, secret=secret)
    put = client_of("owner").put(
        "/api/v1/tenants/ubar/members/bob/", {"role": "viewer"}, content_type="application/json"
    )
    assert (put.status_code, Membership.objects.get(user=bob).role) == (200, "viewer")


def test_an_sre_adds_members_and_sees_unknown_names(ubar) -> None:
    sre, body = client_of("root"), {"role": "viewer"}
    put = {"data": body, "content_type": "application/json"}
    assert sre.put("/api/v1/tenants/ubar/members/bob/", **put).status_code == 200
    missing = sre.put("/api/v1/tenants/ubar/members/nobody/", **put)
    assert (missing.status_code, missing.json()["fields"]) == (404, {"user": "no such user"})


def test_the_page_of_a_tenant_adds_nobody_either(ubar) -> None:
    owner = in_session("owner")
    pages = [owner.post("/tenants/ubar/", {"do": "role", "user": name, "role": "viewer"}) for name in NAMES]
    assert [page.status_code for page in pages] == [403, 403, 403]
    assert all("accepting an invitation" in page.content.decode() for page in pages)
    removed = [owner.post("/tenants/ubar/", {"do": "remove", "user": name}) for name in NAMES]
    assert [page.status_code for page in removed] == [404, 404, 404]
    changed = owner.post("/tenants/ubar/", {"do": "role", "user": "viewer", "role": "operator"})
    assert changed.status_code == 302
    assert Membership.objects.filter(tenant=ubar, role="operator").count() == 2


def test_an_owner_of_the_organisation_joins_a_team_alone(ubar) -> None:
    """An owner of the organisation may add themselves to a team, but has to invite another user."""
    team = Tenant.objects.create(name="ubar-search", parent=ubar)
    owner, bob = (get_user_model().objects.get(username=name) for name in ("owner", "bob"))
    membership_set(principal=principal_of_user(owner), tenant=team, user=owner, role="operator")
    assert Membership.objects.get(tenant=team).user == owner
    with pytest.raises(InvitationNeeded):
        membership_set(principal=principal_of_user(owner), tenant=team, user=bob, role="operator")
