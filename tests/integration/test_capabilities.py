"""Tests of capabilities (§2.5): requested, granted with a reason and an end, revoked, and enforced at each use."""

from __future__ import annotations

import datetime as dt

import pytest

from quota import clock
from quota.models import Capability, CapabilityRequest, Notice, Record
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.capabilities import USUAL, capability_answer, capability_ask, capability_grant, capability_revoke
from quota.tenancy.service_accounts import service_account_create
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import CapabilityKind, Role
from scheduling.jobs import submit_and_kill, updates
from scheduling.shells import shells
from tests.integration import rows, world

pytestmark = pytest.mark.django_db
WHOLE = {"appclass": "latency-sensitive", "tasks": 1}


@pytest.fixture
def cell():
    cell = rows.a_cell()
    rows.a_machine(cell)
    return cell


@pytest.fixture
def tenant(cell):
    tenant = rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    return tenant


@pytest.fixture
def ann(tenant):
    return world.a_user("ann", tenant=tenant, role=Role.OPERATOR)


def give(user, kind: CapabilityKind, cell: str = "cc", **given) -> Capability:
    return capability_grant(principal=rows.ME, user=user, kind=kind.value, cell=cell, reason="on call", **given)


def whole_cores(cores: int = 1, **changes) -> dict:
    file = world.with_task("exact", tasks=1, whole_cores=True)
    file["task"]["limit"] = {**file["task"]["limit"], "cpu": str(cores)}
    return file | {"appclass": "latency-sensitive"} | changes


# -- what each capability allows


def test_reclamation_is_switched_off_by_the_capability_alone(cell, ann) -> None:
    file = world.a_file("careful", reclamation=False)
    with pytest.raises(Forbidden, match=r"needs the capability no-reclamation in cell cc.*page Capabilities") as told:
        world.submit(principal_of_user(ann), cell, file)
    assert list(told.value.fields) == ["reclamation"]
    give(ann, CapabilityKind.NO_RECLAMATION, "dd")
    with pytest.raises(Forbidden):
        world.submit(principal_of_user(ann), cell, file)
    held = give(ann, CapabilityKind.NO_RECLAMATION)
    job = world.submit(principal_of_user(ann), cell, file)
    with clock.at(held.expires_at):
        changed = world.read(cell, world.a_file("careful", reclamation=False, labels={"a": "b"}))
        done = updates.job_update(principal=principal_of_user(ann), job=job, job_spec=changed)
        assert done.outcome == "updated", "what was granted to the job stays with it"
        calm = world.read(cell, world.a_file("careful"))
        updates.job_update(principal=principal_of_user(ann), job=job, job_spec=calm)
        with pytest.raises(Forbidden):
            updates.job_update(principal=principal_of_user(ann), job=job, job_spec=changed)
        job.refresh_from_db()
        with pytest.raises(Forbidden):
            updates.job_undo(principal=principal_of_user(ann), job=job)


def test_cores_are_reserved_by_the_capability_alone(cell, ann) -> None:
    with pytest.raises(Forbidden, match="reserve-cores") as told:
        world.submit(principal_of_user(ann), cell, whole_cores())
    assert list(told.value.fields) == ["task.whole_cores"]
    held = give(ann, CapabilityKind.RESERVE_CORES, "")
    job = world.submit(principal_of_user(ann), cell, whole_cores(2))
    capability_revoke(principal=rows.ME, capability=held)
    for cores, tasks, allowed in ((2, 1, True), (1, 2, True), (1, 3, False), (3, 1, False)):
        wanted = world.read(cell, whole_cores(cores, tasks=tasks, labels={"n": f"{cores}-{tasks}"}))
        if allowed:
            updates.job_update(principal=principal_of_user(ann), job=job, job_spec=wanted)
        else:
            with pytest.raises(Forbidden):
                updates.job_update(principal=principal_of_user(ann), job=job, job_spec=wanted)


def test_one_of_many_that_asks_for_too_much_hinders_no_other(cell, ann) -> None:
    files = [world.a_file("one"), world.a_file("two", reclamation=False), whole_cores()]
    given = submit_and_kill.jobs_submit_bulk(principal=principal_of_user(ann), cell=cell, files=files, tenant="ubar")
    assert [verdict.outcome for verdict in given] == ["submitted", "refused", "refused"]


def test_any_job_of_the_cell_is_killed_by_the_capability_alone(cell, ann) -> None:
    other = rows.a_tenant("other")
    job = world.submit(world.principal("eve", tenant=other), cell, world.a_file(priority=0), tenant="other")
    with pytest.raises(NotFound):
        submit_and_kill.job_kill(principal=principal_of_user(ann), job=job)
    held = give(ann, CapabilityKind.ANY_JOB)
    with clock.at(held.expires_at), pytest.raises(NotFound):
        submit_and_kill.job_kill(principal=principal_of_user(ann), job=job)
    assert submit_and_kill.job_kill(principal=principal_of_user(ann), job=job) == 3


def test_shells_are_opened_by_the_capability_and_a_role(cell, ann) -> None:
    job = world.submit(principal_of_user(ann), cell, world.a_file())
    with pytest.raises(Forbidden, match="page Capabilities"):
        shells.require_shell(principal_of_user(ann), job)
    held = give(ann, CapabilityKind.SHELL)
    shells.require_shell(principal_of_user(ann), job)
    with clock.at(held.expires_at), pytest.raises(Forbidden):
        shells.require_shell(principal_of_user(ann), job)
    viewer = world.a_user("viewer", tenant=job.tenant, role=Role.VIEWER)
    give(viewer, CapabilityKind.SHELL)
    with pytest.raises(Forbidden):
        shells.require_shell(principal_of_user(viewer), job)


def test_a_service_account_holds_them_too(cell, tenant, ann) -> None:
    boss = world.principal("boss", tenant=tenant)
    account = service_account_create(principal=boss, tenant=tenant, name="ci", role="operator")
    give(account.user, CapabilityKind.SHELL)
    job = world.submit(principal_of_user(ann), cell, world.a_file())
    shells.require_shell(principal_of_user(account.user, tenant="ubar"), job)
    assert Record.objects.latest("revision").tenant == "ubar"


# -- granting and revoking


def test_taken_back_nothing_is_left_of_it_though_it_was_granted_twice_at_once(ann) -> None:
    given = give(ann, CapabilityKind.ANY_JOB)
    again = Capability.objects.get(pk=given.pk)
    again.pk = None
    again.save()
    capability_revoke(principal=rows.ME, capability=given)
    assert not Capability.objects.filter(user=ann).exists()


def test_it_ends_by_itself_and_granting_again_prolongs_it(ann) -> None:
    before = clock.now()
    held = give(ann, CapabilityKind.SHELL)
    assert before + USUAL <= held.expires_at <= clock.now() + USUAL
    longer = give(ann, CapabilityKind.SHELL, expires_at=held.expires_at + dt.timedelta(days=30))
    assert (longer.pk, Capability.objects.count()) == (held.pk, 1)
    with clock.at(held.expires_at):
        assert principal_of_user(ann).has(CapabilityKind.SHELL, "cc")
    with clock.at(longer.expires_at):
        assert not principal_of_user(ann).has(CapabilityKind.SHELL, "cc")


def test_grants_and_ends_are_on_record_where_the_owners_look(ann) -> None:
    held = give(ann, CapabilityKind.SHELL)
    capability_revoke(principal=rows.ME, capability=held)
    capability_revoke(principal=rows.ME, capability=held)
    found = Record.objects.filter(kind__startswith="capability.").order_by("revision")
    assert [(r.kind, r.tenant, r.data["user"]) for r in found] == [
        ("capability.granted", "ubar", "ann"),
        ("capability.revoked", "ubar", "ann"),
    ]
    assert "on call" in found[0].data["reason"]


@pytest.mark.parametrize(
    "given, field",
    [
        ({"kind": "fly"}, "kind"),
        ({"reason": "  "}, "reason"),
        ({"reason": "x" * 501}, "reason"),
        ({"reason": "\x00"}, "reason"),
        ({"cell": "No Cell"}, "cell"),
        ({"cell": "a\n"}, "cell"),
        ({"expires_at": dt.datetime(2001, 1, 1, tzinfo=dt.UTC)}, "expires_at"),
        ({"expires_at": dt.datetime(9999, 1, 1, tzinfo=dt.UTC)}, "expires_at"),
    ],
    ids=str,
)
def test_a_bad_grant_names_the_field(ann, given, field) -> None:
    with pytest.raises(Rejected) as problem:
        capability_grant(principal=rows.ME, user=ann, **{"kind": "shell", "reason": "why", **given})
    assert list(problem.value.fields) == [field]
    assert not Capability.objects.exists()


def test_only_sres_grant_revoke_and_answer(tenant, ann) -> None:
    boss = world.principal("boss", tenant=tenant)
    held = give(ann, CapabilityKind.SHELL)
    asked = ask(ann, tenant, kind="any-job")
    for act in (
        lambda: capability_grant(principal=boss, user=ann, kind="shell", reason="x"),
        lambda: capability_revoke(principal=boss, capability=held),
        lambda: capability_answer(principal=boss, request=asked, granted=True),
    ):
        with pytest.raises(Forbidden):
            act()


# -- requesting


def ask(user, tenant, *, who=None, **given) -> CapabilityRequest:
    return capability_ask(
        principal=who or principal_of_user(user),
        tenant=tenant,
        username=user.get_username(),
        **{"kind": "shell", "cell": "cc", "reason": "debugging", **given},
    )


def test_what_is_asked_for_is_granted_once(tenant, ann) -> None:
    asked = ask(ann, tenant)
    assert Notice.objects.latest("id").tenant is None, "the SREs hear of it"
    with pytest.raises(Conflict, match="already requested shell"):
        ask(ann, tenant)
    sre = world.principal("root", sre=True)
    done = capability_answer(principal=sre, request=asked, granted=True)
    assert (done.state, done.capability.granted_by, done.capability.expires_at) == ("granted", "root", asked.until)
    assert principal_of_user(ann).has(CapabilityKind.SHELL, "cc")
    with pytest.raises(Conflict, match="root has already answered"):
        capability_answer(principal=sre, request=asked, granted=False, answer="no")


def test_a_refusal_says_why(tenant, ann) -> None:
    asked = ask(ann, tenant)
    with pytest.raises(Rejected) as problem:
        capability_answer(principal=rows.ME, request=asked, granted=False, answer=" ")
    assert list(problem.value.fields) == ["answer"]
    capability_answer(principal=rows.ME, request=asked, granted=False, answer="use logs")
    assert not Capability.objects.exists()
    assert "use logs" in Notice.objects.latest("id").subject
    ask(ann, tenant)


def test_capabilities_may_be_requested_by_oneself_and_by_owners(tenant, ann) -> None:
    boss = world.principal("boss", tenant=tenant)
    assert ask(ann, tenant, who=boss).asked_by == "boss"
    with pytest.raises(Forbidden):
        ask(world.a_user("boss"), tenant, who=principal_of_user(ann))
    with pytest.raises(NotFound):
        ask(world.a_user("eve", tenant=rows.a_tenant("other")), tenant, who=boss)
    with pytest.raises(Forbidden):
        ask(world.a_user("eve"), tenant)
