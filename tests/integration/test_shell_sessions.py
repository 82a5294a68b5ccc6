"""Tests of shell sessions in rows and journal: who may open how many, and that each step is taken once."""

from __future__ import annotations

import datetime as dt
import uuid

import msgspec
import pytest
from django.utils import timezone

from borglet.messages import ShellClaims
from quota.models import Capability
from quota.tenancy.authentication import principal_of_user
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Principal, Scope
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.journal import journal
from scheduling.models import Event, ShellSession, Task
from scheduling.shells import shells
from scheduling.tasks import transitions
from tests.integration import portal_world, rows
from tests.integration.portal_world import World
from tests.integration.world import a_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    made = portal_world.make()
    portal_world.report(made.job, 0)
    return made


def who(name: str, *, capable: bool = True, **more: object) -> Principal:
    user = a_user(name)
    if capable:
        Capability.objects.get_or_create(user=user, kind="shell", defaults={"reason": "on call"})
    return principal_of_user(user, **more)  # type: ignore[arg-type]


def ask(world: World, principal: Principal, **more: object) -> ShellSession:
    task = Task.objects.get(pk=task_id(world.job.id, 0))
    return shells.shell_ask(principal=principal, job=world.job, task=task, **more)  # type: ignore[arg-type]


def test_it_takes_a_role_that_may_change_the_job_and_the_capability(world: World) -> None:
    for name in ("operator", "owner"):
        assert ask(world, who(name)).actor == name
    assert ask(world, who("sre", capable=False)).actor == "sre"
    for principal, refusal in (
        (who("viewer"), Forbidden),
        (who("stranger"), NotFound),
        (who("operator", scopes=frozenset({Scope.READ})), Forbidden),
        (who("operator", tenant="other"), NotFound),
    ):
        with pytest.raises(refusal):
            ask(world, principal)
    Capability.objects.all().delete()
    Capability.objects.create(user=a_user("operator"), kind="shell", cell="dd", reason="of another cell")
    with pytest.raises(Forbidden, match="capability shell"):
        ask(world, who("operator", capable=False))


def test_each_step_is_taken_once_and_the_grant_says_what_the_row_says(world: World) -> None:
    session = ask(world, who("operator"), command=["top", "-b"], rows=10, cols=20, peer="192.0.2.7")
    with pytest.raises(Conflict):
        shells.shell_grant(session.id, machine_id=world.machine.id + 1)
    assert not shells.shell_connected(session.id, machine_id=world.machine.id), "not granted yet"
    claims = msgspec.json.decode(shells.shell_grant(session.id, machine_id=world.machine.id).claims, type=ShellClaims)
    assert (claims.session, claims.machine, claims.user) == (session.id.hex, "m1", "operator")
    assert (claims.command, claims.rows, claims.cols) == (["top", "-b"], 10, 20)
    assert claims.expires_at - claims.issued_at == 60
    with pytest.raises(Conflict):
        shells.shell_grant(session.id, machine_id=world.machine.id)
    assert not shells.shell_connected(session.id, machine_id=world.machine.id + 1)
    assert shells.shell_connected(session.id, machine_id=world.machine.id)
    assert not shells.shell_connected(session.id, machine_id=world.machine.id)
    with pytest.raises(Conflict):
        shells.shell_grant(uuid.uuid4(), machine_id=world.machine.id)


def test_a_grant_is_for_a_task_that_is_still_there_and_lately_asked_for(world: World) -> None:
    late, moved = ask(world, who("operator")), ask(world, who("operator"))
    ShellSession.objects.filter(pk=late.pk).update(asked_at=timezone.now() - dt.timedelta(seconds=61))
    with pytest.raises(Conflict, match="is older than 60 s"):
        shells.shell_grant(late.id, machine_id=world.machine.id)
    with journal.write(world.cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task_id(world.job.id, 0), 1, "other")])
    with pytest.raises(Conflict, match="has just left its machine"):
        shells.shell_grant(moved.id, machine_id=world.machine.id)
    assert shells.shell_seen(moved.id, principal=who("operator"), typed=0, printed=0).startswith("the task")
    with pytest.raises(Conflict, match="is pending"):
        ask(world, who("operator"))


def test_so_many_a_task_and_so_many_a_person(world: World) -> None:
    first = ask(world, who("operator"))
    for _more in range(shells.PER_TASK - 1):
        ask(world, who("owner"))
    with pytest.raises(Conflict, match="task 0 of job jfoo has 5 open shells") as refused:
        ask(world, who("sre"))
    assert refused.value.code == "too-many-shells"
    assert shells.shell_close(first.id, principal=who("operator"), how="done")
    ask(world, who("sre"))


def test_closing_is_journalled_once_and_the_lost_are_swept_up(world: World) -> None:
    session, quiet = ask(world, who("operator")), ask(world, who("owner"))
    assert shells.shell_seen(session.id, principal=who("operator"), typed=3, printed=9) == ""
    assert shells.shell_close(session.id, principal=who("operator"), how="exited with status 0", typed=4)
    assert not shells.shell_close(session.id, principal=who("operator"), how="again")
    ShellSession.objects.filter(pk=quiet.pk).update(seen_at=timezone.now() - dt.timedelta(minutes=2))
    assert shells.shells_sweep() == 1
    assert shells.shells_sweep() == 0
    told = Event.objects.filter(kind="shell.closed").order_by("revision")
    assert [(event.actor, event.data["how"], event.data["bytes_typed"]) for event in told] == [
        ("operator", "exited with status 0", 4),
        ("system:shells", "the portal process of this shell has ended", 0),
    ]
    assert told[0].data["bytes_printed"] == 9
    assert shells.shell_seen(session.id, principal=who("operator"), typed=0, printed=0) != ""


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"rows": 0}, "rows"),
        ({"cols": 1001}, "cols"),
        ({"command": [""]}, "command"),
        ({"command": ["a\0b"]}, "command"),
        ({"command": ["x" * 20_000]}, "command"),
    ],
)
def test_bad_input_names_its_field_and_leaves_nothing(world: World, asked: dict[str, object], field: str) -> None:
    with pytest.raises(Rejected) as refused:
        ask(world, who("operator"), **asked)
    assert list(refused.value.fields) == [field]
    assert not ShellSession.objects.exists()
