"""Tests of changes of tasks on real PostgreSQL: those that still hold are applied, and counters of jobs updated."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client

from quota.models import PriorityBand, QuotaUse
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import Requirement, split_task_id, task_id
from scheduling.core.vocabulary.states import EvictionCause, Observation
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.journal import journal
from scheduling.models import Departure, Job, NoticeCount, Task
from scheduling.tasks import departures, reported_states, transitions
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)


def counters(job: Job) -> tuple[int, ...]:
    job.refresh_from_db()
    return (job.tasks_total, job.tasks_pending, job.tasks_running, job.tasks_up, job.tasks_dead)


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def job(cell):
    return rows.a_job(cell, rows.a_tenant())


def place(cell, job, machine, *indexes, port=20000):
    with journal.write(cell.id, rows.ME) as entry:
        return transitions.tasks_place(entry, [Assignment(job.id, i, machine.id, ports=(port + i,)) for i in indexes])


def test_tasks_are_made_pending_and_counted(cell, job) -> None:
    assert counters(job) == (3, 3, 0, 0, 0)
    assert set(Task.objects.values_list("id", flat=True)) == {task_id(job.id, i) for i in range(3)}


def test_only_pending_tasks_are_placed_and_once(cell, job) -> None:
    machine = rows.a_machine(cell)
    assert len(place(cell, job, machine, 0, 1)) == 2
    assert place(cell, job, machine, 0) == []
    assert counters(job) == (3, 1, 2, 0, 0)
    task = Task.objects.get(job=job, index=1)
    assert (task.state, task.incarnation, task.ports, task.phase) == ("running", 1, [20001], "assigned")
    assert job.state == "running"


def test_a_preempted_task_departs_and_its_preemptor_is_named(cell, job) -> None:
    machine = rows.a_machine(cell)
    place(cell, job, machine, 0)
    with journal.write(cell.id, rows.ME) as entry:
        reported_states.tasks_observe(entry, [Observation(task_id(job.id, 0), 1, "up", "unknown", up=True, restarts=0)])
    assert counters(job) == (3, 2, 1, 1, 0)
    with journal.write(cell.id, rows.ME) as entry:
        (was,) = transitions.tasks_evict(
            entry, [Eviction(task_id(job.id, 0), 1, "preemption", preemptor=task_id(99, 4))]
        )
    assert was.machine_id == machine.id
    assert counters(job) == (3, 3, 0, 0, 0)
    departure = Departure.objects.get()
    assert (departure.incarnation, departure.ports, departure.preemptor) == (1, [20000], task_id(99, 4))
    event = journal.tail(cell.id, after=0)[-1].event
    assert isinstance(event, events.TaskEvicted)
    assert event.preemptor == (99, 4)
    with journal.write(cell.id, rows.ME) as entry:
        assert departures.tasks_gone(entry, [(task_id(job.id, 0), 1, {"cause": "stopped"})])
    assert not Departure.objects.exists()
    assert Task.objects.get(job=job, index=0).exit == {"cause": "stopped"}


def test_news_of_an_older_incarnation_changes_nothing(cell, job) -> None:
    machine = rows.a_machine(cell)
    place(cell, job, machine, 0)
    before = journal.newest(cell.id)
    with journal.write(cell.id, rows.ME) as entry:
        assert transitions.tasks_evict(entry, [Eviction(task_id(job.id, 0), 7, "lost")]) == []
        assert reported_states.tasks_observe(entry, [Observation(task_id(job.id, 0), 7, "up", "", up=True)]) == []
    assert journal.newest(cell.id) == before


def test_a_job_ends_with_its_last_task_and_gives_its_quota_back(cell) -> None:
    tenant = rows.a_tenant()
    rows.grant(tenant, cell, "production")
    job = rows.a_job(cell, tenant, tasks=2)
    band = PriorityBand.objects.get(name="production")
    use = QuotaUse.objects.create(tenant=tenant, cell=cell.name, band=band, used=job.requested)
    machine = rows.a_machine(cell)
    place(cell, job, machine, 0)
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(
            entry,
            [
                Ending(task_id(job.id, 0), "finished", incarnation=1, gone=True, exit={"status": 0}),
                Ending(task_id(job.id, 1), "killed"),
            ],
        )
    assert counters(job) == (2, 0, 0, 0, 2)
    assert (job.state, job.outcome) == ("dead", "killed")
    use.refresh_from_db()
    assert use.used == [0] * 6
    assert isinstance(journal.tail(cell.id, after=0)[-1].event, events.JobEnded)
    assert not Departure.objects.exists()


def test_a_dead_task_is_revived_under_another_version(cell, job) -> None:
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(job.id, 0), "failed")])
    with journal.write(cell.id, rows.ME) as entry:
        assert transitions.tasks_revive(entry, [task_id(job.id, i) for i in (0, 1)], spec_version=2) == [
            task_id(job.id, 0)
        ]
    task = Task.objects.get(job=job, index=0)
    assert (task.state, task.spec_version, task.outcome) == ("pending", 2, "")
    assert counters(job) == (3, 3, 0, 0, 0)


def test_a_change_in_place_keeps_the_machine(cell, job) -> None:
    machine = rows.a_machine(cell)
    place(cell, job, machine, 0)
    larger = Requirement((200, *rows.SMALL[1:]))
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_follow(entry, [(task_id(job.id, 0), 2, larger)])
    task = Task.objects.get(job=job, index=0)
    assert (task.machine_id, task.limit[0], task.reservation[0], task.spec_version) == (machine.id, 200, 200, 2)


def test_crashed_pairs_are_remembered(cell, job) -> None:
    machine = rows.a_machine(cell)
    for _ in range(2):
        place(cell, job, machine, 0)
        task = Task.objects.get(job=job, index=0)
        with journal.write(cell.id, rows.ME) as entry:
            transitions.tasks_evict(entry, [Eviction(task.id, task.incarnation, "failure", gone=True, avoid=True)])
    assert Task.objects.get(job=job, index=0).crashed_pairs.get().machine == machine


def test_notices_are_counted_by_cause_and_by_what_there_was_of_them(cell) -> None:
    machine = rows.a_machine(cell)
    job = rows.a_job(cell, rows.a_tenant(), tasks=4)
    ids = [task_id(job.id, index) for index in range(4)]
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_place(
            entry, [Assignment(*split_task_id(i), machine.id, ports=(20000 + n,)) for n, i in enumerate(ids)]
        )
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(i, 1, EvictionCause.PREEMPTION.value) for i in ids[:3]])
        transitions.tasks_end(entry, [Ending(ids[3], "killed", 1)])
    said = [{"notice": "full"}, {"notice": "short"}, None, {"notice": "full"}]
    with journal.write(cell.id, rows.ME) as entry:
        departures.tasks_gone(entry, [(ids[0], 1, {"cause": "stopped", **said[0]})])
    with journal.write(cell.id, rows.ME) as entry:
        rest = zip(ids[1:], said[1:], strict=True)
        departures.tasks_gone(entry, [(i, 1, exit_ and {"cause": "stopped", **exit_}) for i, exit_ in rest])
    counted = NoticeCount.objects.order_by("cause", "delivered").values_list("cause", "delivered", "number")
    assert list(counted) == [
        ("kill", "full", 1),
        ("preemption", "full", 1),
        ("preemption", "none", 1),
        ("preemption", "short", 1),
    ]
    text = Client().get("/metrics").content.decode()
    assert 'borg_notices_total{cause="preemption",cell="cc",delivered="full"} 1.0' in text


def test_placing_reads_only_the_rows_of_the_placed_tasks(cell) -> None:
    machine = rows.a_machine(cell, "m1")
    large = rows.a_job(cell, rows.a_tenant(), "jqux", tasks=2_000)
    plans: list[str] = []

    def explained(execute, sql, params, many, context):
        if sql.startswith("UPDATE"):
            with connection.cursor() as cursor:
                # PostgreSQL would read the small table whole after it has collected statistics.
                cursor.cursor.execute("SET LOCAL enable_seqscan = off")
                cursor.cursor.execute(f"EXPLAIN {sql}", params)
                plans.append("\n".join(line for (line,) in cursor.fetchall()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explained):
        assert len(place(cell, large, machine, *range(500))) == 500
    (of_tasks,) = [plan for plan in plans if "on scheduling_task" in plan]
    assert "Index Scan using scheduling_task_pkey" in of_tasks
    assert "task_pending" not in of_tasks
