from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naming.table.jobs import Indexes, NamedJob, NamedService
from naming.table.reverse import path_of
from naming.table.table import GONE, HISTORY_STEP, STARTS_A_SECOND, NameTable, serial_newer, serial_of, serial_start
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.requirement import Group, Requirement
from tests.examples import examples
from tests.unit.naming.cells import (
    WEB,
    changed,
    ended,
    evicted,
    in_order,
    in_service,
    machine,
    placed,
    reported,
    running,
    submitted,
    table_of,
)


def web(table: NameTable) -> NamedJob:
    job = table.job("ubar", "web")
    assert job is not None
    return job


def indexes(job: NamedJob) -> list[int]:
    return sorted(task.index for task in job.answering)


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
    table = table_of(machine(0), submitted(tasks=1), placed(0, 0), reported(0, health="unknown", checked=False))
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
        events.JobChanged(job_id=WEB, priority=300, latency_sensitive=True, spec_version=1, port_names=("http", "rpc")),
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
    old, new = in_order(web(table).placed)
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


@given(made=st.integers(0, 2**33), lived=st.integers(1, 2**31 // STARTS_A_SECOND - 1), revision=st.integers(0, 2**31))
def test_a_cell_made_again_under_its_name_goes_on_above_the_first(made: int, lived: int, revision: int) -> None:
    published = serial_of(min(revision, lived * STARTS_A_SECOND - 1), start=serial_start(made))
    assert serial_newer(serial_of(0, start=serial_start(made + lived)), published)


def test_each_revision_has_a_serial_of_its_own() -> None:
    assert [serial_of(revision) for revision in (0, 1, 2)] == [2**32 - 1, 1, 2]
    assert serial_newer(serial_of(1), serial_of(0))
    assert [serial_of(revision) for revision in (2**32 - 1, 2**32)] == [2**32 - 1, 1]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=8))
def test_ranges_equal_the_set_of_their_members(ranges: list[tuple[int, int]]) -> None:
    bounds = [(first, first + length) for first, length in ranges]
    mixed, expected = Indexes(), set()
    for first, last in bounds:
        mixed.add([(first, last)])
        expected.update(range(first, last + 1))
    assert [index for index in range(80) if index in mixed] == sorted(expected)
    assert mixed.size == len(expected)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["place", "up", "sick", "starting", "end"])), max_size=60))
@settings(max_examples=examples(200))
def test_pools_equal_a_slow_obvious_table(steps: list[tuple[int, str]]) -> None:
    """Apply random events. The tasks that serve, and those that are placed, must equal a simple replay."""
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
                ("starting", "unknown") if step == "starting" else ("up", "healthy" if step == "up" else "unhealthy")
            )
            table.apply(reported(index, phase, health, incarnation=incarnations[index]), revision)
        job = web(table)
        up = sorted(i for i, state in slow.items() if state == "up")
        assert [task.index for task in in_order(job.placed)] == sorted(slow)
        assert [task.index for task in in_order(job.serving)] == up
        assert indexes(job) == (up or sorted(slow))
        assert job.fails_open == (bool(slow) and not up)


def of_service(table: NameTable, name: str = "front") -> NamedService:
    service = table.service("ubar", name)
    assert service is not None
    return service


def test_a_service_is_the_jobs_of_its_label() -> None:
    service = of_service(table_of(*in_service()))
    assert {job.name for job in service.jobs.values()} == {"web", "canary"}
    assert (service.tasks_total, service.placed_total, service.serving_total) == (5, 5, 5)
    assert sorted(task.address for task in service.answering) == [f"10.0.0.{n}" for n in range(1, 6)]
    assert service.all_port_names() == {"http", "rpc", "debug"}


def test_a_service_fails_open_as_a_whole() -> None:
    table = table_of(*in_service(), *(reported(index, health="unhealthy") for index in range(3)))
    service = of_service(table)
    assert web(table).fails_open
    assert not service.fails_open
    assert {task.job.name for task in service.answering} == {"canary"}
    for revision, index in enumerate(range(2), start=90):
        table.apply(reported(index, health="unhealthy", job_id=8), revision)
    assert service.fails_open
    assert len(service.answering) == 5


def test_jobs_come_to_a_service_change_it_and_leave() -> None:
    table = table_of(*in_service())
    first = of_service(table)
    assert table.apply(changed(job_id=8, labels={"service": "back"}), 90)
    back = of_service(table, "back")
    assert ([*first.jobs], [*back.jobs]) == ([WEB], [8])
    assert first.revision == back.revision == 90
    table.apply(events.JobEnded(job_id=8, how="killed"), 91)
    assert table.service("ubar", "back") is None
    assert back.revision == GONE
    table.apply(changed(labels={}), 92)
    assert table.services == {}
    assert first.revision == GONE
    table.apply(changed(labels={"service": "front"}), 93)
    assert of_service(table).revision == 93


@pytest.mark.parametrize("label", ["", "0", "9web", "Web", "my_web", "web.x", "web-", "w" * 64])
def test_a_label_that_does_not_name_a_service_makes_none(label: str) -> None:
    assert table_of(submitted(labels={"service": label})).services == {}


def test_an_alloc_set_is_in_no_service() -> None:
    assert table_of(submitted(labels={"service": "front"}, kind="alloc-set")).services == {}


def test_what_happens_to_a_task_moves_its_service() -> None:
    table = table_of(*in_service())
    for revision, event in enumerate(
        [reported(0, "starting"), evicted(1, job_id=8), placed(1, 0, job_id=8, incarnation=2), ended(2)], start=90
    ):
        assert table.apply(event, revision)
        assert of_service(table).revision == revision
    table.apply(machine(3, "10.7.7.7"), 95)
    assert of_service(table).revision == 95


def test_how_a_job_is_published_is_in_force_at_once() -> None:
    table = table_of(*running(3))
    assert table.apply(changed(published=Published(ttl_s=60, weights=((1, 1, 7),))), 90)
    assert (web(table).ttl_s, web(table).revision) == (60, 90)
    assert [task.weight for task in in_order(web(table).placed)] == [1, 7, 1]
    assert not table.apply(changed(published=Published(ttl_s=60, weights=((1, 1, 7),))), 91)
    table.apply(evicted(1), 92)
    table.apply(placed(1, 0, incarnation=2), 93)
    assert [task.weight for task in in_order(web(table).placed)] == [1, 7, 1]
    assert table.apply(changed(), 94)
    assert [task.weight for task in in_order(web(table).placed)] == [1, 1, 1]


def test_weight_0_answers_only_where_no_other_serves() -> None:
    spare = Published(weights=((2, 3, 0),))
    table = table_of(*running(4), changed(published=spare))
    assert indexes(web(table)) == [0, 1]
    for index in range(2):
        table.apply(reported(index, health="unhealthy"), 90 + index)
    assert indexes(web(table)) == [2, 3]
    for index in range(2, 4):
        table.apply(reported(index, health="unhealthy"), 90 + index)
    assert web(table).fails_open
    assert indexes(web(table)) == [0, 1]


ADDRESSES = ["", "10.9.0.1", "10.9.0.2", "fd00::1", "fd00::2"]


@given(
    st.lists(
        st.one_of(
            st.builds(machine, st.integers(0, 2), st.sampled_from(["10.0.0.1", "10.0.1.1", "fd00::1", "none"])),
            st.builds(events.MachineRemoved, machine_id=st.integers(0, 2)),
            st.builds(placed, st.integers(0, 2), st.integers(0, 2), incarnation=st.integers(1, 2)),
            st.builds(reported, st.integers(0, 2), incarnation=st.integers(1, 2), address=st.sampled_from(ADDRESSES)),
            st.builds(evicted, st.integers(0, 2), incarnation=st.integers(1, 2)),
            st.just(events.JobEnded(job_id=WEB, how="killed")),
            st.just(submitted()),
        ),
        max_size=30,
    )
)
@settings(max_examples=examples(200), deadline=None)
def test_the_reverse_index_is_what_a_walk_over_the_table_finds(news: list[events.Event]) -> None:
    table = table_of(submitted(), *news)
    expected: dict[str, set[tuple[str, ...]]] = {}
    for one in table.machines.values():
        if one.family:
            expected.setdefault(one.address, set()).add((one.hostname, "machine"))
    for job in table.jobs.values():
        for task in job.placed.tasks:
            if task.own_address:
                expected.setdefault(task.own_address, set()).add((str(task.index), job.name, job.tenant))
    for address in {"10.0.0.1", "10.0.1.1", *ADDRESSES} - {""}:
        path = path_of(address)
        assert path is not None
        assert set(table.reverse.owners(path, 9)) == expected.get(address, set())
        for length in range(1, len(path)):
            held = any((path_of(one) or b"").startswith(path[:length]) for one in expected)
            assert table.reverse.below(path[:length], len(path)) == held


def test_many_versions_of_a_spec_cost_no_more_than_their_numbers() -> None:
    table = table_of(*running(1))
    for version in range(2, 500):
        table.apply(changed(version=version), 100 + version)
    job = web(table)
    assert len({id(names) for names in job.versions.values()}) == 1
    assert job.all_port_names() is job.all_port_names()  # computed once, and not for every query
    table.apply(changed(version=500, ports=("debug",)), 1_000)
    assert job.all_port_names() == {"http", "rpc", "debug"}
    assert [job.versions[version] for version in (1, 499, 500)] == [("http", "rpc")] * 2 + [("debug",)]
