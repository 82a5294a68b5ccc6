"""Tests of brakes, which limit how many tasks a cell evicts or stops by itself. The others wait for an SRE."""

from __future__ import annotations

import datetime as dt

import pytest

from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Principal
from scheduling.brakes import stored_brakes as service
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.journal import journal
from scheduling.machines import evacuation, machines
from scheduling.models import Brake, Machine, Task
from scheduling.policy import brake_rules
from scheduling.policy.brake_rules import BrakeState
from scheduling.policy.cell_settings import CellSettings
from scheduling.tasks import transitions
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)

SETTINGS = CellSettings()
EVE = Principal(name="eve")
# There are 300 tasks. 5 % of them per minute are one task in four seconds.
MACHINES, EACH = 30, 10


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch) -> None:
    monkeypatch.setattr(brake_rules, "ALWAYS_STOPPED", 200)


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def fleet(cell) -> list[Machine]:
    """Return `MACHINES` machines, each with `EACH` placed tasks of one job."""
    made = [rows.a_machine(cell, f"m{number}", rack=f"r{number % 3}") for number in range(MACHINES)]
    job = rows.a_job(cell, rows.a_tenant(), tasks=MACHINES * EACH)
    with journal.write(cell.id, rows.ME) as entry:
        places = [
            Assignment(job.id, index, made[index % MACHINES].id, ports=(20_000 + index,))
            for index in range(MACHINES * EACH)
        ]
        assert len(transitions.tasks_place(entry, places)) == MACHINES * EACH
    return made


def down(cell, gone: list[Machine]) -> None:
    machines.machines_down(principal=rows.ME, cell_id=cell.id, machine_ids=[m.id for m in gone], reason="silent")


def back(cell, machines_: list[Machine]) -> None:
    with journal.write(cell.id, rows.ME) as entry:
        machines.machines_return(entry, [m.id for m in machines_], "it answers again")


def second(cell, *, late: int = 0) -> int:
    """Evict tasks as the master does in one second, and return how many. The brakes get one second older.

    `late`: the number of machines whose reports are late, but which are not down yet.
    """
    evicted = evacuation.tasks_leave(cell.id, SETTINGS, seconds=1.0, late=late)
    older(cell, 1.0)
    return evicted


def older(cell, seconds: float) -> None:
    for brake in Brake.objects.filter(cell=cell):
        brake.at -= dt.timedelta(seconds=seconds)
        brake.since -= dt.timedelta(seconds=seconds)
        brake.calm_since = brake.calm_since and brake.calm_since - dt.timedelta(seconds=seconds)
        brake.until = brake.until and brake.until - dt.timedelta(seconds=seconds)
        brake.pulled_at = brake.pulled_at and brake.pulled_at - dt.timedelta(seconds=seconds)
        brake.save()


def state(cell, kind: str = "lost") -> str:
    brake = Brake.objects.filter(cell=cell, kind=kind).first()
    return brake.state if brake is not None else "open"


def reported(cell) -> list[tuple[str, str]]:
    return [
        (record.event.brake, record.event.state)
        for record in journal.tail(cell.id, after=0)
        if isinstance(record.event, events.BrakeSet)
    ]


# -- machines that vanish


def test_tasks_of_a_dead_machine_leave_at_once(cell, fleet) -> None:
    down(cell, fleet[:1])
    assert second(cell) == EACH
    assert reported(cell) == []


def test_a_third_that_vanishes_loses_tasks_at_the_cells_rate_only_and_none_once_it_is_back(cell, fleet) -> None:
    gone = fleet[: MACHINES // 3]
    down(cell, gone)
    evicted = sum(second(cell) for _ in range(48))  # cut off for 60 s, of which 12 s pass before the machines are down
    assert 10 <= evicted <= 48 * 0.25 + 1
    assert state(cell) == "bounded"
    assert Brake.objects.get(cell=cell).wanted >= len(gone) * EACH - evicted
    back(cell, gone)
    assert sum(second(cell) for _ in range(62)) == 0
    assert reported(cell) == [("lost", "bounded"), ("lost", "open")]
    assert Task.objects.filter(state="running").count() == MACHINES * EACH - evicted


def test_the_last_to_come_back_keep_their_tasks_too_and_the_dead_among_them_are_believed_later(cell, fleet) -> None:
    down(cell, fleet[:10])
    evicted = sum(second(cell) for _ in range(20))
    for machine in fleet[:8]:
        back(cell, [machine])
        evicted += second(cell)
    assert evicted <= 28 * 0.25 + 1
    assert state(cell) == "bounded"
    assert sum(second(cell) for _ in range(52)) <= 14
    assert sum(second(cell) for _ in range(10)) > 0
    assert state(cell) == "open"
    assert not Task.objects.filter(machine__in=fleet[8:10]).exists()


def test_machines_that_are_late_count_before_they_are_silent(cell, fleet) -> None:
    """Machines that are late reduce the rate of evictions before they are down: all may have lost the network."""
    down(cell, fleet[:1])
    assert second(cell, late=9) == 0
    assert state(cell) == "bounded"
    down(cell, fleet[1:10])
    assert sum(second(cell) for _ in range(8)) <= 3


def test_when_most_vanish_nothing_moves_until_an_sre_says_so(cell, fleet) -> None:
    down(cell, fleet[:20])
    assert sum(second(cell) for _ in range(30)) == 0
    brake = Brake.objects.get(cell=cell)
    assert (brake.state, brake.wanted) == ("held", 200)
    assert "20 of 30 machines were lost together" in brake.detail
    service.brake_release(principal=rows.ME, cell=cell, kind="lost", reason="the room burnt")
    assert state(cell) == "released"
    assert 10 <= sum(second(cell) for _ in range(60)) <= 16  # still at the bounded rate
    assert [s for _, s in reported(cell)] == ["held", "released"]


def test_an_sre_may_keep_it_held_and_it_opens_by_itself_when_they_are_back(cell, fleet) -> None:
    down(cell, fleet[:20])
    second(cell)
    service.brake_keep(principal=rows.ME, cell=cell, kind="lost", reason="a switch is being replaced")
    assert sum(second(cell) for _ in range(10)) == 0
    assert state(cell) == "kept"
    back(cell, fleet[:20])
    assert sum(second(cell) for _ in range(40)) == 0  # with real time, less than a minute since the state is `kept`
    assert state(cell) == "kept"
    assert sum(second(cell) for _ in range(22)) == 0
    assert state(cell) == "open"


def test_where_no_machine_is_left_nobody_leaves(cell, machine) -> None:
    job = rows.a_job(cell, rows.a_tenant(), tasks=1)
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_place(entry, [Assignment(job.id, 0, machine.id, ports=(20_000,))])
    down(cell, [machine])
    assert second(cell) == 0
    assert state(cell) == "held"
    back(cell, [machine])
    assert second(cell) == 0
    assert Task.objects.get().incarnation == 1


def test_machines_long_dead_and_empty_don_t_count(cell, fleet) -> None:
    empty = [rows.a_machine(cell, f"old{number}") for number in range(12)]
    down(cell, empty)
    Machine.objects.filter(hostname__startswith="old").update(
        state_since=Machine.objects.first().joined_at - dt.timedelta(hours=1)
    )
    down(cell, fleet[:1])
    assert second(cell) == EACH


# -- stops


def stop(cell, number: int) -> bool:
    """Return whether the cell may stop `number` tasks by itself. If not, store how many stops the brake prevented."""
    with journal.write(cell.id, rows.ME) as entry:
        passed = service.stops_pass(entry, number, what="preemption")
        entry.append(events.LeaseTaken(scheduler="default", holder="x", epoch=1))
    if not passed:
        service.stops_wanted(cell.id, number)
    return passed


def test_the_cell_stops_no_more_than_its_share_by_itself(cell, fleet) -> None:
    assert stop(cell, 150)
    assert not stop(cell, 51)  # 200 stops in five minutes are allowed
    brake = Brake.objects.get(cell=cell, kind="stops")
    assert brake.state == "held"
    assert "preemption would stop 51 tasks at once" in brake.detail
    assert not stop(cell, 1)  # from now on, no stop is allowed
    older(cell, 500)
    assert not stop(cell, 1)
    assert Brake.objects.get(kind="stops").wanted == 1
    service.brake_release(principal=rows.ME, cell=cell, kind="stops", reason="a planned launch", seconds=60)
    assert stop(cell, 300)
    older(cell, 61)
    assert not stop(cell, 201)
    assert [s for kind, s in reported(cell) if kind == "stops"] == ["held", "released", "held"]


def test_an_allowance_comes_back(cell, fleet) -> None:
    assert stop(cell, 200)
    older(cell, brake_rules.WINDOW_S / 2)
    assert stop(cell, 99)
    older(cell, brake_rules.WINDOW_S)
    assert stop(cell, 200)


def test_a_brake_that_nobody_pulls_at_any_more_opens(cell, fleet) -> None:
    assert not stop(cell, 201)
    service.stops_settle(cell.id)
    assert state(cell, "stops") == "held"
    older(cell, brake_rules.FORGOTTEN_S + 1)
    service.stops_settle(cell.id)
    assert state(cell, "stops") == "open"
    assert stop(cell, 200)


def test_only_sres_decide_and_only_about_what_is_held(cell, fleet) -> None:
    with pytest.raises(Conflict, match="brake stops of cell cc is open"):
        service.brake_release(principal=rows.ME, cell=cell, kind="stops", reason="x")
    with pytest.raises(NotFound, match="give one of lost, stops"):
        service.brake_keep(principal=rows.ME, cell=cell, kind="hand", reason="x")
    assert not stop(cell, 201)
    with pytest.raises(Forbidden):
        service.brake_release(principal=EVE, cell=cell, kind="stops", reason="x")
    with pytest.raises(Rejected, match="give a reason"):
        service.brake_keep(principal=rows.ME, cell=cell, kind="stops", reason=" ")
    with pytest.raises(Rejected, match="give 1 to 86400"):
        service.brake_release(principal=rows.ME, cell=cell, kind="stops", reason="x", seconds=0)
    assert BrakeState(state(cell, "stops")) is BrakeState.HELD
