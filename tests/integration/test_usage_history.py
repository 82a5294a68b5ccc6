"""Tests of windows of usage: reported over the link, stored once, shown to members, and deleted in time."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from borglet.messages import TaskKey, UsageWindow
from scheduling.core.vocabulary.task_events import Ending
from scheduling.journal import journal
from scheduling.models import InstanceUsage, Machine
from scheduling.tasks import transitions
from scheduling.usage import usage_windows
from scheduling.usage.usage_windows import TaskWindow, old_hours, sensible, store, stored_hours
from tests.integration import rows
from tests.integration.link_world import Link, a_job, place, ran, running_link, task, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def link(cell):
    with running_link() as running:
        yield running


def this_window(ago: int = 0) -> int:
    return int(time.time()) // 300 * 300 - 300 * (1 + ago)


def a_window(key: TaskKey, *, ago: int = 0, **changed: object) -> UsageWindow:
    fields = {
        "key": key,
        "start": this_window(ago),
        "span_s": 300,
        "samples": 60,
        "cpu_milli": 250,
        "most_cpu_milli": 1000,
        "random_cpu_milli": 240,
        "cpu_distribution": list(range(0, 1100, 100)),
        "cpu_tail": list(range(910, 1000, 10)),
        "ram_bytes": 2**20,
        "most_ram_bytes": 2**21,
        "limit_cpu_milli": 500,
        "limit_ram_bytes": 2**26,
        "cached_bytes": 5,
        "most_threads": 3,
    }
    return UsageWindow(**(fields | changed))  # type: ignore[arg-type]


def stored() -> list[InstanceUsage]:
    return list(InstanceUsage.objects.order_by("collection_id", "start_time"))


def test_a_window_is_stored_once_however_often_it_is_reported(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, Machine.objects.get().id)
        machine.report(machine.poll_with_desired(lambda desired: bool(desired.run)), ran(key))
        machine.keep_answering(lambda: task(job).up)
        window = a_window(key)
        machine.report(machine.poll(), windows=[window])
        for _ in range(20):
            poll = machine.poll()
            if poll.windows_until:
                break
            machine.report(poll, windows=[window])
        assert poll.windows_until == window.start + 300
        machine.report(poll)
    (row,) = stored()
    assert (row.collection_id, row.instance_index, row.incarnation) == (job.id, 0, key.incarnation)
    assert (row.average_usage_cpus, row.maximum_usage_cpus, row.assigned_cpus) == (0.25, 1.0, 0.5)
    assert row.sample_rate == pytest.approx(0.2)
    assert row.cpu_usage_distribution == pytest.approx([n / 10 for n in range(11)])
    assert (row.end_time - row.start_time).total_seconds() == 300


def test_a_task_that_has_ended_is_still_told_of(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, Machine.objects.get().id)
        machine.report(machine.poll_with_desired(lambda desired: bool(desired.run)), ran(key))
        machine.keep_answering(lambda: task(job).up)
        with journal.write(cell.id, rows.ME) as entry:
            transitions.tasks_end(entry, [Ending(task(job).id, "finished", key.incarnation, gone=True)])
        poll = machine.poll_with_desired(lambda desired: not desired.run)
        machine.report(poll, windows=[a_window(key)])
        until(stored)


def test_usage_of_others_is_nothing_that_a_machine_can_tell(cell, link: Link) -> None:
    theirs = a_job(cell, "theirs")
    with link.machine(cell, "m2") as victim, link.machine(cell, "m1") as thief:
        key = place(theirs, Machine.objects.get(hostname="m2").id)
        victim.report(victim.poll_with_desired(lambda desired: bool(desired.run)), ran(key))
        lies = [a_window(key), a_window(TaskKey("0" * 32, 0, 1)), a_window(key, start=5)]
        thief.report(thief.poll_with_desired(), windows=lies)
        for _ in range(20):
            poll = thief.poll()
            thief.report(poll)
            if poll.windows_until:
                break
        assert poll.windows_until  # so that the machine does not report it for ever
    assert stored() == []


@pytest.mark.parametrize(
    "changed",
    [
        {"span_s": 5},
        {"start": 0},
        {"start": int(time.time()) + 90_000},
        {"samples": 0},
        {"cpu_tail": []},
        {"cpu_distribution": [1] * 12},
        {"key": TaskKey("0" * 32, 0, 2**31)},
    ],
    ids=range(7),  # the present time is in one of them
)
def test_a_window_that_can_not_be_is_refused(changed) -> None:
    now = time.time()
    assert sensible(a_window(TaskKey("0" * 32, 0, 1)), now)
    assert not sensible(a_window(**({"key": TaskKey("0" * 32, 0, 1)} | changed)), now)


def windows_of(number: int, *, ago: int = 0) -> list[TaskWindow]:
    return [TaskWindow(1, 1, usage_history_id(n), a_window(TaskKey(f"{n:032x}", 0, 1), ago=ago)) for n in range(number)]


def usage_history_id(job: int) -> int:
    from scheduling.core.vocabulary.requirement import task_id

    return task_id(10**6 + job, 0)


def test_storing_takes_as_many_statements_for_many_as_for_one(db, django_assert_max_num_queries) -> None:
    store(windows_of(1))
    with django_assert_max_num_queries(6):
        store(windows_of(500))
    assert InstanceUsage.objects.count() == 500
    store(windows_of(500))
    assert InstanceUsage.objects.count() == 500
    wild = [TaskWindow(1, 1, usage_history_id(0), a_window(TaskKey("0" * 32, 0, 9), ram_bytes=-5, most_threads=2**60))]
    store(wild)
    row = InstanceUsage.objects.get(incarnation=9)
    assert (row.average_usage_memory, row.threads) == (0, 2**31 - 1)


def test_hours_are_old_when_machines_report_them_no_more_and_nobody_keeps_them(db) -> None:
    store(windows_of(3, ago=0) + windows_of(3, ago=20))
    now = dt.datetime.now(dt.UTC)
    hours = sorted({this_window(20) // 3600, this_window() // 3600})
    assert set(hours) <= set(stored_hours())
    assert not set(hours).intersection(old_hours(keep_hours=0, now=now)), "machines may still report these"
    assert set(hours) <= set(old_hours(keep_hours=3, now=now + dt.timedelta(hours=10)))
    assert not set(hours).intersection(old_hours(keep_hours=24, now=now + dt.timedelta(hours=10)))


def test_people_and_programs_read_what_a_task_used(cell) -> None:
    job = a_job(cell)
    key = place(job, rows.a_machine(cell).id)
    store([TaskWindow(cell.id, 1, task(job).id, a_window(key, ago=n)) for n in (0, 2)])
    found = list(usage_windows.of_task(task(job), since=dt.datetime.now(dt.UTC) - dt.timedelta(hours=3)))
    assert [row.start_time for row in found] == sorted(row.start_time for row in found)
    assert len(found) == 2
