"""Tests of service accounts: members that are not people, of one tenant, never owners, with tokens that expire."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.auth import get_user_model

from quota import clock
from quota.models import Record, ServiceAccount, Token
from quota.tenancy.authentication import InvalidToken, principal_of_token, principal_of_user
from quota.tenancy.members import member_leave, membership_set
from quota.tenancy.service_accounts import (
    service_account_create,
    service_account_named,
    service_account_remove,
    service_account_set,
    service_account_token,
)
from quota.tenancy.tokens import token_issue, token_revoke
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Role, Scope
from tests.integration import rows, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant():
    return rows.a_tenant("ubar")


@pytest.fixture
def ann(tenant):
    return world.principal("ann", tenant=tenant)


@pytest.fixture
def ci(tenant, ann) -> ServiceAccount:
    return service_account_create(principal=ann, tenant=tenant, name="ci", role="operator", description="builds")


def test_it_acts_as_itself_inside_its_tenant_and_the_records_say_who_made_it(tenant, ann, ci) -> None:
    _, secret = service_account_token(principal=ann, account=ci, name="runner")
    user, who = principal_of_token(secret)
    assert (user, who.name, who.tenant, who.roles) == (ci.user, "ci@ubar", "ubar", {"ubar": Role.OPERATOR})
    assert who.scopes == {Scope.READ, Scope.WRITE}
    made = Record.objects.get(kind="service-account.created")
    assert (made.actor, made.tenant, made.data["user"]) == ("ann", "ubar", "ci@ubar")
    with clock.at(clock.now() + dt.timedelta(days=91)), pytest.raises(InvalidToken, match="expired"):
        principal_of_token(secret)


def test_it_has_no_password_and_gets_none(ci) -> None:
    assert not ci.user.has_usable_password()


def test_disabled_and_removed_its_tokens_prove_nothing_at_once(ann, tenant, ci) -> None:
    token, secret = service_account_token(principal=ann, account=ci, name="runner")
    service_account_set(principal=ann, account=ci, enabled=False)
    with pytest.raises(InvalidToken, match="is disabled"):
        principal_of_token(secret)
    with pytest.raises(Conflict, match="enable it first"):
        service_account_token(principal=ann, account=service_account_named(tenant, "ci"), name="another")
    service_account_set(principal=ann, account=ci, enabled=True)
    assert principal_of_token(secret)[1].name == "ci@ubar"
    service_account_remove(principal=ann, account=ci)
    with pytest.raises(InvalidToken, match="unknown"):
        principal_of_token(secret)
    assert Record.objects.latest("revision").data == {"user": "ci@ubar", "tokens": [token.key]}
    with pytest.raises(NotFound):
        service_account_named(tenant, "ci")


def test_it_is_never_an_owner_and_of_no_other_tenant(ann, tenant, ci) -> None:
    other = rows.a_tenant("other")
    for act, error in (
        (lambda: service_account_create(principal=ann, tenant=tenant, name="root", role="owner"), Rejected),
        (lambda: service_account_set(principal=ann, account=ci, role="owner"), Rejected),
        (lambda: membership_set(principal=rows.ME, tenant=tenant, user=ci.user, role="owner"), Rejected),
        (lambda: membership_set(principal=rows.ME, tenant=other, user=ci.user, role="viewer"), Conflict),
        (lambda: membership_set(principal=rows.ME, tenant=tenant, user=ci.user, role=None), Conflict),
        (lambda: member_leave(principal=principal_of_user(ci.user), tenant=tenant, user=ci.user), Conflict),
    ):
        with pytest.raises(error):
            act()
    membership_set(principal=ann, tenant=tenant, user=ci.user, role="viewer")
    assert principal_of_user(ci.user).roles == {"ubar": Role.VIEWER}


def test_its_tokens_are_bound_and_end_whichever_person_makes_them(ann, tenant, ci) -> None:
    later = clock.now() + dt.timedelta(days=1)
    for given in ({"tenant": tenant}, {"expires_at": later}, {"tenant": rows.a_tenant("other"), "expires_at": later}):
        with pytest.raises(Rejected, match="needs an expiry time and the tenant of the account"):
            token_issue(principal=rows.ME, user=ci.user, name="x", scopes=["read"], **given)
    for given, field in (
        ({"scopes": ["admin"]}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"name": " "}, "name"),
        ({"expires_at": clock.now() + dt.timedelta(days=400)}, "expires_at"),
        ({"expires_at": clock.now() - dt.timedelta(days=1)}, "expires_at"),
    ):
        with pytest.raises(Rejected) as problem:
            service_account_token(principal=ann, account=ci, **{"name": "x", **given})
        assert list(problem.value.fields) == [field]
    assert not Token.objects.exists()


def test_an_owner_revokes_its_tokens_and_no_strangers(ann, tenant, ci) -> None:
    token, _ = service_account_token(principal=ann, account=ci, name="runner")
    for stranger in (
        world.principal("eve", tenant=rows.a_tenant("other")),
        world.principal("bob", tenant=tenant, role=Role.OPERATOR),
    ):
        with pytest.raises(NotFound):
            token_revoke(principal=stranger, key=token.key)
    assert token_revoke(principal=ann, key=token.key).revoked_at is not None
    mine, _ = token_issue(principal=ann, user=world.a_user("bob"), name="bob's", scopes=["read"])
    with pytest.raises(NotFound):
        token_revoke(principal=ann, key=mine.key)


def test_only_owners_have_them(tenant, ci) -> None:
    for role in (Role.VIEWER, Role.OPERATOR, Role.BUYER):
        who = world.principal(role.value, tenant=tenant, role=role)
        for act in (
            lambda who=who: service_account_create(principal=who, tenant=tenant, name="x", role="viewer"),
            lambda who=who: service_account_set(principal=who, account=ci, enabled=False),
            lambda who=who: service_account_token(principal=who, account=ci, name="x"),
            lambda who=who: service_account_remove(principal=who, account=ci),
        ):
            with pytest.raises(Forbidden):
                act()


@pytest.mark.parametrize(
    "given, field",
    [({"name": name}, "name") for name in ("", "CI", "a b", "a\x00", "a@b", "a\n", "x" * 64)]
    + [
        ({"role": "king"}, "role"),
        ({"description": "x" * 201}, "description"),
        ({"description": "\x00"}, "description"),
    ],
    ids=str,
)
def test_bad_input_names_the_field_and_makes_nobody(tenant, ann, given, field) -> None:
    before = get_user_model().objects.count()
    with pytest.raises(Rejected) as problem:
        service_account_create(principal=ann, tenant=tenant, **{"name": "ci", "role": "viewer", **given})
    assert (list(problem.value.fields), get_user_model().objects.count()) == ([field], before)


def test_a_name_is_taken_once(tenant, ann, ci) -> None:
    with pytest.raises(Conflict):
        service_account_create(principal=ann, tenant=tenant, name="ci", role="viewer")
