from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naming.table import HISTORY_STEP, Indexes, Job, NameTable, serial_newer, serial_of
from scheduling.core import events
from scheduling.core.requirement import Group, Requirement
from tests.unit.naming.cells import (
    WEB,
    ended,
    evicted,
    machine,
    placed,
    reported,
    running,
    submitted,
    table_of,
)


def web(table: NameTable) -> Job:
    job = table.job("ubar", "web")
    assert job is not None
    return job


def indexes(job: Job) -> list[int]:
    return [task.index for task in job.answering.in_order()]


def test_a_job_answers_with_its_healthy_tasks_only() -> None:
    table = table_of(*running(3), reported(1, health="unhealthy"))
    assert indexes(web(table)) == [0, 2]
    assert not web(table).fails_open


@pytest.mark.parametrize("phase", ["assigned", "installing", "starting", "stopping", "backoff", "ended"])
def test_only_a_task_that_is_up_serves(phase: str) -> None:
    table = table_of(*running(2), reported(0, phase=phase))
    assert indexes(web(table)) == [1]


def test_a_task_whose_check_has_not_answered_yet_does_not_serve() -> None:
    table = table_of(*running(2), reported(0, health="unknown"))
    assert indexes(web(table)) == [1]


def test_up_without_a_declared_check_counts_as_fine() -> None:
    table = table_of(
        machine(0), submitted(tasks=1), placed(0, 0), reported(0, health="unknown", checked=False)
    )
    assert not web(table).fails_open
    assert len(web(table).serving) == 1


def test_when_none_is_healthy_it_fails_open_and_says_so() -> None:
    table = table_of(*running(3), *(reported(index, health="unhealthy") for index in range(3)))
    assert web(table).fails_open
    assert indexes(web(table)) == [0, 1, 2]


def test_a_job_without_placed_tasks_does_not_fail_open() -> None:
    assert not web(table_of(submitted())).fails_open


@pytest.mark.parametrize("leave", [ended, evicted])
def test_a_task_leaves_with_the_decision_and_comes_back_elsewhere(leave) -> None:
    table = table_of(*running(2), leave(1))
    assert indexes(web(table)) == [0]
    for event in (placed(1, 0, incarnation=2), reported(1, incarnation=2)):
        assert table.apply(event, table.revision + 1)
    task = web(table).serving.get(1)
    assert task is not None
    assert (task.machine.hostname, task.incarnation) == ("m0", 2)


@pytest.mark.parametrize("late", [ended(1), evicted(1), reported(1, phase="ended")])
def test_late_news_of_an_older_incarnation_changes_nothing(late: events.Event) -> None:
    table = table_of(*running(2), evicted(1), placed(1, 0, incarnation=2), reported(1, incarnation=2))
    before = table.names_revision
    assert not table.apply(late, table.revision + 1)
    assert table.names_revision == before
    assert indexes(web(table)) == [0, 1]


def test_an_ended_job_frees_its_name_and_its_tenants() -> None:
    table = table_of(*running(2), events.JobEnded(job_id=WEB, how="killed"))
    assert table.job("ubar", "web") is None
    assert table.tenants == {}
    assert not table.apply(reported(0, health="unhealthy"), 99)
    table.apply(submitted(job_id=8), 100)
    assert web(table).job_id == 8


def test_the_serial_moves_only_when_names_do() -> None:
    table = table_of(*running(2))
    serial, revision = table.serial, table.revision
    quiet = [
        events.LeaseTaken(scheduler="default", holder="w1", epoch=3),
        events.ReservationsSet(tasks=((WEB, 0),), reservations=((1,),)),
        events.MachineState(machine_id=0, state="draining"),
        reported(0, restarts=1),
        machine(0),
        events.JobChanged(
            job_id=WEB, priority=300, latency_sensitive=True, spec_version=1, port_names=("http", "rpc")
        ),
    ]
    for offset, event in enumerate(quiet, start=1):
        assert not table.apply(event, revision + offset)
    assert table.serial == serial
    assert table.revision == revision + len(quiet)
    assert table.apply(reported(0, health="unhealthy"), revision + 10)
    assert table.serial == revision + 10


def test_a_task_added_to_the_job_has_a_name() -> None:
    table = table_of(submitted(tasks=2))
    assert 2 not in web(table).indexes
    table.apply(events.TasksAdded(job_id=WEB, groups=(Group(Requirement(()), ((2, 4),)),), spec_version=1), 9)
    assert 4 in web(table).indexes
    assert web(table).indexes.size == 5


def test_ports_keep_the_names_of_the_version_that_the_task_runs() -> None:
    table = table_of(
        *running(2),
        events.JobChanged(
            job_id=WEB, priority=200, latency_sensitive=True, spec_version=2, port_names=("admin", "http")
        ),
        evicted(1),
        placed(1, 1, incarnation=2, spec_version=2, ports=(30_000, 30_001)),
    )
    old, new = web(table).placed.in_order()
    assert dict(old.named_ports()) == {"http": 20_000, "rpc": 21_000}
    assert dict(new.named_ports()) == {"admin": 30_000, "http": 30_001}


def test_a_machine_that_moves_takes_its_tasks_along() -> None:
    table = table_of(*running(1))
    assert table.apply(machine(0, "2001:db8::7"), 50)
    task = web(table).serving.get(0)
    assert task is not None
    assert (task.machine.address, task.machine.family) == ("2001:db8::7", 6)
    assert table.apply(events.MachineRemoved(machine_id=0), 51)
    assert table.hosts == {}


def test_an_address_that_is_none_stops_no_journal() -> None:
    table = table_of(machine(0, "not an address"))
    assert table.hosts["m0"].family == 0


@pytest.mark.parametrize("a, b", [(1, 2**32 - 1), (2, 1), (2**31, 1), (HISTORY_STEP + 5, 2**26 - 100)])
def test_serials_compare_around_the_circle(a: int, b: int) -> None:
    assert serial_newer(a, b)
    assert not serial_newer(b, a)
    assert not serial_newer(a, a)


@given(revision=st.integers(0, 2**40), lost=st.integers(0, HISTORY_STEP - 1), ordinal=st.integers(1, 200))
def test_a_restore_never_takes_the_serial_back(revision: int, lost: int, ordinal: int) -> None:
    published = serial_of(revision + lost, ordinal)
    assert 0 < published < 2**32
    assert serial_newer(serial_of(revision, ordinal + 1), published)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=8))
def test_ranges_equal_the_set_of_their_members(ranges: list[tuple[int, int]]) -> None:
    bounds = [(first, first + length) for first, length in ranges]
    mixed, expected = Indexes(), set()
    for first, last in bounds:
        mixed.add([(first, last)])
        expected.update(range(first, last + 1))
    assert [index for index in range(80) if index in mixed] == sorted(expected)
    assert mixed.size == len(expected)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["place", "up", "sick", "starting", "end"])), max_size=60
    )
)
@settings(max_examples=200)
def test_pools_equal_a_slow_obvious_table(steps: list[tuple[int, str]]) -> None:
    """Whatever happens in whichever order, serving and placed are what a replay by hand says."""
    table = table_of(machine(0), submitted(tasks=6))
    slow: dict[int, str] = {}
    incarnations = dict.fromkeys(range(6), 0)
    for revision, (index, step) in enumerate(steps, start=10):
        if step == "place" and index not in slow:
            incarnations[index] += 1
            slow[index] = "assigned"
            table.apply(placed(index, 0, incarnation=incarnations[index]), revision)
        elif step == "end" and index in slow:
            del slow[index]
            table.apply(ended(index, incarnation=incarnations[index]), revision)
        elif step in ("up", "sick", "starting") and index in slow:
            slow[index] = step
            phase, health = (
                ("starting", "unknown")
                if step == "starting"
                else ("up", "healthy" if step == "up" else "unhealthy")
            )
            table.apply(reported(index, phase, health, incarnation=incarnations[index]), revision)
        job = web(table)
        up = sorted(i for i, state in slow.items() if state == "up")
        assert [task.index for task in job.placed.in_order()] == sorted(slow)
        assert [task.index for task in job.serving.in_order()] == up
        assert indexes(job) == (up or sorted(slow))
        assert job.fails_open == (bool(slow) and not up)


def test_samples_are_bounded_and_reach_every_task() -> None:
    pool = web(table_of(*running(10))).answering
    rng = Random(3)
    seen = {task.index for _ in range(200) for task in pool.sample(3, rng)}
    assert seen == set(range(10))
    assert len(pool.sample(3, rng)) == 3
    assert len(pool.sample(99, rng)) == 10
