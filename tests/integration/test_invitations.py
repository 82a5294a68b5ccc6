"""Tests of invitations: a link works once, for one person, until it is withdrawn or expires. Mails are limited."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
from django.core import mail
from django.db import connection

from quota import clock
from quota.models import Invitation, Membership, Record
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.invitations import (
    A_DAY_PER_ADDRESS,
    invitation_accept,
    invitation_mail,
    invitation_send,
    invitation_withdraw,
    link_of,
)
from quota.tenancy.members import membership_set
from quota.tenancy.service_accounts import service_account_create
from quota.tenancy.tenants import tenant_create
from quota.vocabulary.errors import Conflict, Forbidden, Rejected
from quota.vocabulary.permissions import Role
from tests.integration import rows, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant():
    return rows.a_tenant("ubar")


@pytest.fixture
def ann(tenant):
    return world.principal("ann", tenant=tenant)


def accept(name: str, secret: str) -> Membership:
    user = world.a_user(name)
    return invitation_accept(principal=principal_of_user(user), user=user, secret=secret)


def test_a_link_is_mailed_and_makes_a_member_once(tenant, ann) -> None:
    row, secret = invitation_send(principal=ann, tenant=tenant, email=" Bob@Example.org ", role="buyer")
    assert row.email == "bob@example.org"
    assert invitation_mail(row, secret) == ""
    (letter,) = mail.outbox
    assert letter.to == ["bob@example.org"]
    assert link_of(secret) in letter.body
    assert secret not in str(list(Record.objects.values())) + str(list(Invitation.objects.values()))
    assert accept("bob", secret).role == "buyer"
    for name in ("bob", "carol"):
        with pytest.raises(Rejected) as problem:
            accept(name, secret)
        assert problem.value.code == "invitation-over"
    kinds = Record.objects.filter(tenant="ubar").order_by("revision").values_list("kind", flat=True)
    assert list(kinds) == ["invitation.sent", "invitation.accepted", "member.set"]


@pytest.mark.parametrize("spoilt", ["", "x", "{key}_", "{key}_wrong", "\x00", "\ud800_x", "{secret}x"])
def test_a_link_that_is_not_whole_opens_nothing(tenant, ann, spoilt) -> None:
    row, secret = invitation_send(principal=ann, tenant=tenant, email="bob@example.org", role="buyer")
    with pytest.raises(Rejected, match="ask for a new invitation"):
        accept("bob", spoilt.format(key=row.key, secret=secret))
    assert not Membership.objects.filter(user__username="bob").exists()


def test_withdrawn_and_late_and_replaced_links_work_no_more(tenant, ann) -> None:
    row, withdrawn = invitation_send(principal=ann, tenant=tenant, email="bob@example.org", role="buyer")
    invitation_withdraw(principal=ann, tenant=tenant, key=row.key)
    _, replaced = invitation_send(principal=ann, tenant=tenant, email="bob@example.org", role="buyer")
    row, last = invitation_send(principal=ann, tenant=tenant, email="bob@example.org", role="owner")
    with clock.at(row.expires_at), pytest.raises(Rejected):
        accept("bob", last)
    for secret in (withdrawn, replaced):
        with pytest.raises(Rejected):
            accept("bob", secret)
    assert accept("bob", last).role == "owner"
    with pytest.raises(Conflict, match="remove the member instead"):
        invitation_withdraw(principal=ann, tenant=tenant, key=row.key)


def test_members_keep_their_role_and_the_link_its_worth(tenant, ann) -> None:
    _, secret = invitation_send(principal=ann, tenant=tenant, email="bob@example.org", role="viewer")
    with pytest.raises(Conflict, match="you already have the role owner in ubar"):
        accept("ann", secret)
    assert accept("bob", secret).role == "viewer"


def test_what_a_former_owner_has_invited_is_withdrawn(tenant, ann) -> None:
    world.a_user("boss", tenant=tenant)
    _, secret = invitation_send(principal=ann, tenant=tenant, email="accomplice@example.org", role="owner")
    membership_set(principal=rows.ME, tenant=tenant, user=world.a_user("ann"), role="operator")
    with pytest.raises(Rejected):
        accept("accomplice", secret)


def test_what_a_former_owner_has_invited_to_teams_is_withdrawn_too(tenant, ann) -> None:
    team = tenant_create(principal=ann, name="web", parent=tenant.name)
    inviter = principal_of_user(world.a_user("ann"))
    row, secret = invitation_send(principal=inviter, tenant=team, email="me@example.org", role="owner")
    world.a_user("bob", tenant=tenant, role=Role.OWNER)
    membership_set(principal=rows.ME, tenant=tenant, user=world.a_user("ann"), role=None)
    row.refresh_from_db()
    assert row.withdrawn_at is not None
    assert Record.objects.get(tenant="web", kind="invitation.withdrawn").data["keys"] == [row.key]
    with pytest.raises(Rejected):
        accept("ann", secret)


def test_only_owners_invite_and_only_people_accept(tenant, ann) -> None:
    bob = world.principal("bob", tenant=tenant, role=Role.OPERATOR)
    with pytest.raises(Forbidden):
        invitation_send(principal=bob, tenant=tenant, email="x@example.org", role="viewer")
    other = rows.a_tenant("other")
    boss = world.principal("boss", tenant=other)
    _, secret = invitation_send(principal=boss, tenant=other, email="x@example.org", role="viewer")
    account = service_account_create(principal=ann, tenant=tenant, name="ci", role="operator")
    for who, user in (
        (principal_of_user(account.user), account.user),
        (principal_of_user(world.a_user("ann"), tenant="ubar"), world.a_user("ann")),
        (rows.ME, world.a_user("ann")),
    ):
        with pytest.raises(Forbidden):
            invitation_accept(principal=who, user=user, secret=secret)


@pytest.mark.parametrize(
    "given, field",
    [
        ({"email": "nobody"}, "email"),
        ({"email": "a@b.org\nBcc: c@d.org"}, "email"),
        ({"email": ""}, "email"),
        ({"email": "x" * 250 + "@example.org"}, "email"),
        ({"email": "a@b.org, c@d.org"}, "email"),
        ({"role": "king"}, "role"),
        ({"expires_at": dt.datetime(2001, 1, 1, tzinfo=dt.UTC)}, "expires_at"),
        ({"expires_at": dt.datetime(9999, 1, 1, tzinfo=dt.UTC)}, "expires_at"),
    ],
    ids=str,
)
def test_bad_input_names_the_field_and_invites_nobody(tenant, ann, given, field) -> None:
    with pytest.raises(Rejected) as problem:
        invitation_send(principal=ann, tenant=tenant, **{"email": "a@b.org", "role": "viewer", **given})
    assert list(problem.value.fields) == [field]
    assert not Invitation.objects.exists()


def test_an_address_is_left_in_peace(tenant, ann) -> None:
    for _ in range(A_DAY_PER_ADDRESS):
        invitation_send(principal=ann, tenant=tenant, email="bob@example.org", role="viewer")
    with pytest.raises(Rejected, match="wait") as problem:
        invitation_send(principal=ann, tenant=tenant, email="BOB@example.org", role="viewer")
    assert (problem.value.status, problem.value.figures["most"]) == (429, A_DAY_PER_ADDRESS)
    invitation_send(principal=ann, tenant=tenant, email="carol@example.org", role="viewer")
    with clock.at(clock.now() + dt.timedelta(days=2)):
        invitation_send(principal=ann, tenant=tenant, email="bob@example.org", role="viewer")


def test_mail_that_can_not_be_sent_says_why(tenant, ann, settings) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    row, secret = invitation_send(principal=ann, tenant=tenant, email="bob@example.org", role="viewer")
    assert "refused" in invitation_mail(row, secret)
    assert accept("bob", secret).role == "viewer"


@pytest.mark.django_db(transaction=True)
def test_of_many_who_hold_a_link_one_joins() -> None:
    tenant = rows.a_tenant("ubar")
    ann = world.principal("ann", tenant=tenant)
    _, secret = invitation_send(principal=ann, tenant=tenant, email="bob@example.org", role="viewer")
    users = [world.a_user(f"user{number}") for number in range(6)]
    begin = threading.Barrier(len(users))
    outcomes: list[str] = []

    def join(user) -> None:
        try:
            begin.wait()
            invitation_accept(principal=principal_of_user(user), user=user, secret=secret)
            outcomes.append("joined")
        except Rejected as problem:
            outcomes.append(problem.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=join, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(outcomes) == ["invitation-over"] * 5 + ["joined"]
    assert Membership.objects.filter(tenant=tenant).count() == 2
