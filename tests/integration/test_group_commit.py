"""Tests of group commit: submissions that arrive together share a transaction, and each gets its own verdict."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

from quota.models import Tenant
from quota.vocabulary.errors import Conflict, Rejected
from scheduling.jobs import submit_and_kill
from scheduling.jobs.submission.outcomes import Submission
from scheduling.journal import group_commit
from scheduling.models import Cell, Event, Job
from tests.integration.world import a_file, principal, submit

pytestmark = pytest.mark.django_db(transaction=True)
Verdicts = dict[str, Any]


@contextmanager
def locked(cell: Cell) -> Iterator[Callable[[], None]]:
    """Lock the row of the cell in another transaction. Yield a function that releases the lock."""
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT FROM scheduling_cell WHERE id = %s FOR UPDATE", [cell.id])
        yield other.rollback


def together(cell: Cell, wanted: list[tuple[str, dict[str, Any]]], release: Callable[[], None]) -> list[Any]:
    """Submit each (user name, job file) in a thread of its own, then call `release`. Return the jobs and errors."""
    found: list[Any] = [None] * len(wanted)

    def one(place: int, who: str, file: dict[str, Any]) -> None:
        try:
            found[place] = submit(principal(who), cell, file)
        except Rejected as error:
            found[place] = error
        finally:
            connection.close()

    threads = []
    for place, (who, file) in enumerate(wanted):
        threads.append(threading.Thread(target=one, args=(place, who, file)))
        threads[-1].start()
        if place == 0:
            _until_leading(cell)
        else:
            _until_waiting(cell, place)
    release()
    for thread in threads:
        thread.join(30)
    return found


def _until_leading(cell: Cell) -> None:
    _until(lambda: group_commit.of_cell(cell.id)._led)
    # When the leader waits for the lock in PostgreSQL, its group is complete and contains only its own submission.
    _until(lambda: _waiting_for_locks() == 1)


def _until_waiting(cell: Cell, number: int) -> None:
    _until(lambda: len(group_commit.of_cell(cell.id)._waiting) == number)


def _waiting_for_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return int(cursor.fetchone()[0])


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until, "not within 20 s"
        time.sleep(0.01)


@pytest.fixture
def users(tenant: Tenant) -> list[str]:
    names = [f"user{number}" for number in range(6)]
    for name in names:
        principal(name, tenant=tenant)
    return names


def test_waiting_submissions_share_one_revision_and_keep_their_callers(cell: Cell, users: list[str]) -> None:
    before = Cell.objects.get(pk=cell.pk).revision
    with locked(cell) as release:
        jobs = together(cell, [(name, a_file(f"job-{name}")) for name in users], release)
    assert [job.name for job in jobs] == [f"job-{name}" for name in users]
    # The first submission was written alone, and the other five together.
    assert Cell.objects.get(pk=cell.pk).revision == before + 2
    events = Event.objects.filter(cell_id=cell.id, kind="job.submitted").order_by("revision", "seq")
    assert {event.job_id: event.actor for event in events} == {
        job.id: name for job, name in zip(jobs, users, strict=True)
    }
    assert {job.name: job.submitted_by for job in Job.objects.all()} == {f"job-{name}": name for name in users}


def test_each_submission_gets_its_own_verdict(cell: Cell, users: list[str]) -> None:
    too_large = a_file("large", tasks=1000, task=a_file()["task"] | {"limit": {"cpu": 2**40}})
    wanted = [("user0", a_file("one")), ("user1", too_large), ("user2", a_file("two"))]
    with locked(cell) as release:
        one, large, two = together(cell, wanted, release)
    assert (one.name, two.name) == ("one", "two")
    assert isinstance(large, Rejected)
    assert large.code == "quota-exceeded"


def test_the_second_of_two_equal_submissions_sees_the_first(cell: Cell, users: list[str]) -> None:
    same, other = a_file("same"), a_file("same", tasks=4)
    wanted = [("user0", a_file("first")), ("user1", same), ("user2", same), ("user3", other)]
    with locked(cell) as release:
        _, made, unchanged, conflict = together(cell, wanted, release)
    assert made.id == unchanged.id
    assert isinstance(conflict, Conflict)
    assert conflict.code == "job-exists"


def test_a_submission_that_postgresql_rejects_does_not_spoil_its_group(cell: Cell, users: list[str]) -> None:
    """PostgreSQL rejects a submission with a user name of 201 characters. The other one of its group is accepted."""
    from dataclasses import replace

    from scheduling.jobs import submit_and_kill

    failing = replace(principal("user1"), name="x" * 201)
    found: list[Any] = []

    def fail() -> None:
        try:
            read = submit_and_kill.spec_for(principal=failing, cell=cell, file=a_file("bad"), tenant="ubar")
            submit_and_kill.job_submit(principal=failing, cell=cell, job_spec=read)
        except psycopg.DataError as error:
            found.append(error)
        finally:
            connection.close()

    with locked(cell) as release:

        def begin_and_release() -> None:
            thread.start()
            _until_waiting(cell, 2)
            release()

        thread = threading.Thread(target=fail)
        first, second = together(cell, [("user0", a_file("a")), ("user2", a_file("b"))], begin_and_release)
    thread.join(30)
    assert (first.name, second.name, len(found)) == ("a", "b", 1)
    assert set(Job.objects.values_list("name", flat=True)) == {"a", "b"}


def test_a_submission_whose_turn_does_not_come_writes_nothing(
    cell: Cell, users: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "LONGEST_WAIT_S", 1.0)

    def release_later() -> None:
        _until_waiting(cell, 0)
        release()

    with locked(cell) as release:
        first, late = together(cell, [("user0", a_file("a")), ("user1", a_file("late"))], release_later)
    assert first.name == "a"
    assert isinstance(late, Rejected)
    assert (late.code, late.status) == ("cell-busy", 503)
    assert list(Job.objects.values_list("name", flat=True)) == ["a"]


def test_a_single_submission_waits_for_one_bulk_submission_only(cell: Cell, users: list[str]) -> None:
    """Three bulk submissions wait for the cell before the single one arrives. The first one is written before it."""
    who = principal(users[0])

    def bulk(name: str) -> None:
        files = [a_file(f"{name}-{n}") for n in range(3)]
        submit_and_kill.jobs_submit_bulk(principal=who, cell=cell, files=files, tenant="ubar")
        connection.close()

    def single() -> None:
        submit(who, cell, a_file("single"))
        connection.close()

    with locked(cell) as release:
        threads = [threading.Thread(target=bulk, args=(f"bulk{n}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        _until(lambda: _waiting_for_locks() == 1)
        time.sleep(0.1)  # without turns, the other two would also wait in PostgreSQL now
        threads.append(threading.Thread(target=single))
        threads[-1].start()
        _until(lambda: _waiting_for_locks() == 2)
        release()
        for thread in threads:
            thread.join(30)
    submitted = Event.objects.filter(cell_id=cell.id, kind="job.submitted").order_by("revision", "seq")
    names = dict(Job.objects.values_list("id", "name"))
    order = [names[event.job_id] for event in submitted]
    assert len(order) == 10
    assert order[3] == "single"


def test_a_bulk_submission_whose_turn_does_not_come_has_an_outcome_for_each_job(
    cell: Cell, users: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part of the submission is stored. Another bulk submission then has the turn for too long."""
    monkeypatch.setattr(group_commit, "BULK_WAIT_S", 0.05)
    monkeypatch.setattr(submit_and_kill, "JOBS_AT_ONCE", 2)
    turns = [group_commit.bulk_turn(cell.id)]

    def part(*arguments: Any, **options: Any) -> list[Submission]:
        done = submit_part(*arguments, **options)
        if turns:
            held.enter_context(turns.pop())
        return done

    submit_part = submit_and_kill._submit_part
    monkeypatch.setattr(submit_and_kill, "_submit_part", part)
    files = [a_file(name) for name in ("a", "b", "c", "d")]
    with ExitStack() as held:
        done = submit_and_kill.jobs_submit_bulk(principal=principal(users[0]), cell=cell, files=files, tenant="ubar")
    assert [each.outcome for each in done] == ["submitted", "submitted", "refused", "refused"]
    assert {each.problem.code for each in done if each.problem} == {"cell-busy"}
    assert set(Job.objects.values_list("name", flat=True)) == {"a", "b"}
    again = submit_and_kill.jobs_submit_bulk(principal=principal(users[0]), cell=cell, files=files, tenant="ubar")
    assert [each.outcome for each in again] == ["unchanged", "unchanged", "submitted", "submitted"]
