"""Tests of organisations and their teams: roles in both, the last owner, and who may create what."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from quota.models import Membership, Notice, Record, Tenant
from quota.selectors import tenant_named, tenants_visible
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.members import member_leave, membership_set
from quota.tenancy.tenants import tenant_create, tenant_move, tenant_set
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Action, Role, may
from tests.integration import rows, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def org() -> Tenant:
    return tenant_create(principal=rows.ME, name="search", title="Search", time_zone="Europe/Zurich")


def team(name: str = "web", **given: object) -> Tenant:
    return tenant_create(principal=rows.ME, name=name, **{"parent": "search", **given})


def newest() -> Record:
    return Record.objects.latest("revision")


def test_a_team_takes_limits_and_time_zone_from_its_organisation(org) -> None:
    tenant_set(principal=rows.ME, tenant=org, title="Search", contact="", max_jobs=7, task_api="read")
    made = team()
    assert (made.parent, made.max_jobs, made.task_api, made.time_zone) == (org, 7, "read", "Europe/Zurich")
    assert (newest().tenant, newest().kind, newest().data["team"]) == ("search", "team.created", "web")
    assert team("own-zone", time_zone="Asia/Kolkata").time_zone == "Asia/Kolkata"


@pytest.mark.parametrize("role", list(Role))
def test_a_role_in_the_organisation_holds_in_its_teams_and_nowhere_else(org, role) -> None:
    team()
    rows.a_tenant("other")
    who = world.principal("ann", tenant=org, role=role)
    for action in Action:
        assert may(who, action, tenant="web", cell="cc") == may(who, action, tenant="search", cell="cc")
        if action is not Action.CELL_VIEW:
            assert not may(who, action, tenant="other", cell="cc")
    assert set(tenants_visible(who).values_list("name", flat=True)) == {"search", "web"}


def test_roles_of_team_and_organisation_add_up(org) -> None:
    """A user who is a buyer in the organisation and an operator in a team may do both in this team."""
    who = world.a_user("ann", tenant=org, role=Role.BUYER)
    Membership.objects.create(user=who, tenant=team(), role="operator")
    ann = principal_of_user(who)
    assert [may(ann, a, tenant="web") for a in (Action.JOB_WRITE, Action.QUOTA_BUY)] == [True, True]
    assert [may(ann, a, tenant="search") for a in (Action.JOB_WRITE, Action.QUOTA_BUY)] == [False, True]


def test_a_member_of_a_team_sees_nothing_of_the_organisation(org) -> None:
    ann = world.principal("ann", tenant=team())
    assert set(tenants_visible(ann).values_list("name", flat=True)) == {"web"}
    with pytest.raises(NotFound):
        tenant_named(ann, "search")
    assert not any(may(ann, a, tenant="search", cell="cc") for a in set(Action) - {Action.CELL_VIEW})


def test_a_token_bound_to_the_organisation_reaches_none_of_its_teams(org) -> None:
    team()
    bound = principal_of_user(world.a_user("ann", tenant=org), tenant="search")
    assert may(bound, Action.JOB_WRITE, tenant="search")
    assert not may(bound, Action.JOB_VIEW, tenant="web")
    assert [row.name for row in tenants_visible(bound)] == ["search"]


def test_reading_a_principal_takes_one_query_whatever_the_number_of_teams(org) -> None:
    user = world.a_user("ann", tenant=org)
    for number in range(5):
        team(f"team{number}")
    with CaptureQueriesContext(connection) as asked:
        assert len(principal_of_user(user).roles) == 6
    assert len(asked) == 1


def test_what_an_sre_has_set_meanwhile_is_not_put_back(org) -> None:
    stale = type(org).objects.get(pk=org.pk)
    tenant_set(principal=rows.ME, tenant=org, title="", contact="", max_jobs=3, max_teams=1)
    tenant_set(principal=world.principal("ann", tenant=org), tenant=stale, title="Search", contact="")
    org.refresh_from_db()
    assert (org.title, org.max_jobs, org.max_teams) == ("Search", 3, 1)


def test_an_owner_makes_teams_up_to_what_an_sre_allows(org) -> None:
    ann = world.principal("ann", tenant=org)
    tenant_set(principal=rows.ME, tenant=org, title="", contact="", max_teams=1)
    tenant_create(principal=ann, name="web", parent="search")
    ann = principal_of_user(world.a_user("ann"))
    assert may(ann, Action.TENANT_ADMIN, tenant="web")
    with pytest.raises(Conflict, match="ask an SRE to raise the limit"):
        tenant_create(principal=ann, name="mail", parent="search")
    tenant_create(principal=rows.ME, name="mail", parent="search")
    with pytest.raises(Forbidden):
        tenant_set(principal=ann, tenant=org, title="", contact="", max_teams=9)
    for who, parent, error in (
        (world.principal("bob", tenant=org, role=Role.OPERATOR), "search", Forbidden),
        (world.principal("eve"), "search", NotFound),
        (ann, None, Forbidden),
    ):
        with pytest.raises(error):
            tenant_create(principal=who, name="fresh", parent=parent)


def test_teams_are_one_level(org) -> None:
    web, other = team(), rows.a_tenant("other")
    tenant_create(principal=rows.ME, name="below-other", parent="other")
    for moved, parent, code in (
        (other, "web", "one-level"),
        (other, "search", "has-teams"),
        (org, "search", "own-parent"),
        (org, "other", "has-teams"),
    ):
        with pytest.raises(Conflict) as problem:
            tenant_move(principal=rows.ME, tenant=moved, parent=parent)
        assert (problem.value.code, list(problem.value.fields)) == (code, ["parent"])
    with pytest.raises(Conflict):
        tenant_create(principal=rows.ME, name="deep", parent="web")
    with pytest.raises(IntegrityError), transaction.atomic():
        Tenant.objects.filter(pk=web.pk).update(parent=web)


def test_an_sre_moves_a_tenant_and_roles_follow(org) -> None:
    web = team()
    boss = world.a_user("boss", tenant=org)
    rows.a_tenant("other")
    with pytest.raises(Forbidden):
        tenant_move(principal=principal_of_user(boss), tenant=web, parent="other")
    assert tenant_move(principal=rows.ME, tenant=web, parent="other").parent.name == "other"
    assert "web" not in principal_of_user(boss).roles
    assert [r.kind for r in Record.objects.order_by("-revision")[:3]] == ["team.joined", "team.left", "tenant.moved"]
    assert tenant_move(principal=rows.ME, tenant=web, parent=None).parent is None
    with pytest.raises(NotFound):
        tenant_move(principal=rows.ME, tenant=web, parent="nowhere")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "europe/zurich", "../etc/passwd", "x" * 100])
def test_a_time_zone_is_one_of_the_database(org, zone) -> None:
    if zone:
        with pytest.raises(Rejected) as problem:
            tenant_create(principal=rows.ME, name="fresh", time_zone=zone)
        assert list(problem.value.fields) == ["time_zone"]
    with pytest.raises(Rejected):
        tenant_set(principal=rows.ME, tenant=org, title="", contact="", time_zone=zone)
    org.refresh_from_db()
    assert org.time_zone == "Europe/Zurich"


def test_the_last_owner_cannot_be_removed_by_anyone(org) -> None:
    ann = world.a_user("ann", tenant=org)
    for act in (
        lambda: membership_set(principal=rows.ME, tenant=org, user=ann, role=None),
        lambda: membership_set(principal=principal_of_user(ann), tenant=org, user=ann, role="viewer"),
        lambda: member_leave(principal=principal_of_user(ann), tenant=org, user=ann),
    ):
        with pytest.raises(Conflict, match="make another member an owner first") as problem:
            act()
        assert problem.value.code == "last-owner"
    idle = world.a_user("idle", tenant=org)
    idle.is_active = False
    idle.save()
    with pytest.raises(Conflict):
        membership_set(principal=rows.ME, tenant=org, user=ann, role=None)
    world.a_user("bob", tenant=org)
    member_leave(principal=principal_of_user(ann), tenant=org, user=ann)
    assert (newest().kind, newest().actor, newest().data["user"]) == ("member.left", "ann", "ann")
    assert Notice.objects.latest("id").subject == "ann has left search"


def test_a_team_may_do_without_an_owner_of_its_own(org) -> None:
    web = team()
    ann = world.a_user("ann", tenant=web)
    with pytest.raises(Conflict):
        membership_set(principal=rows.ME, tenant=web, user=ann, role=None)
    world.a_user("boss", tenant=org)
    membership_set(principal=rows.ME, tenant=web, user=ann, role=None)
    with pytest.raises(Conflict, match="comes from search"):
        member_leave(principal=world.principal("boss"), tenant=web, user=world.a_user("boss"))


def test_nobody_leaves_for_another(org) -> None:
    world.a_user("bob", tenant=org, role=Role.VIEWER)
    with pytest.raises(Forbidden):
        member_leave(principal=world.principal("ann", tenant=org), tenant=org, user=world.a_user("bob"))
