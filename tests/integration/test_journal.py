"""Tests of the journal on real PostgreSQL: one revision per change, append-only, and read in the order of commits."""

from __future__ import annotations

import threading
from importlib import import_module

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from quota.vocabulary.permissions import Principal, system
from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.models import Cell, Event

pytestmark = pytest.mark.django_db(transaction=True)
ME = system("test")


@pytest.fixture
def cell() -> Cell:
    return Cell.objects.create(name="cc")


def test_a_change_takes_one_revision_and_keeps_the_order_of_its_events(cell: Cell) -> None:
    with journal.write(cell.id, ME) as entry:
        first = entry.append(events.MachineState(machine_id=7, state="down", reason="silent"))
        entry.append(
            events.TaskEvicted(job_id=3, index=1, machine_id=7, incarnation=2, cause="machine-failure"), caused_by=first
        )
    machine, task = journal.tail(cell.id, after=0)
    assert (machine.revision, machine.seq, task.revision, task.seq) == (1, 0, 1, 1)
    assert task.caused_by == first
    assert task.event == events.TaskEvicted(job_id=3, index=1, machine_id=7, incarnation=2, cause="machine-failure")
    row = Event.objects.get(seq=1)
    assert (row.job_id, row.task_index, row.machine_id, row.actor) == (3, 1, 7, "system:test")


def test_a_block_without_events_takes_no_revision(cell: Cell) -> None:
    with journal.write(cell.id, ME):
        pass
    assert journal.newest(cell.id) == 0


def test_a_failing_block_leaves_neither_row_nor_event(cell: Cell) -> None:
    with pytest.raises(ZeroDivisionError), journal.write(cell.id, ME) as entry:  # noqa: PT012 - the block is the case
        Cell.objects.filter(pk=cell.pk).update(settings={"scorer": "e-pvm"})
        entry.append(events.CellSet(settings={}))
        raise ZeroDivisionError
    cell.refresh_from_db()
    assert (cell.settings, cell.revision, journal.tail(cell.id, after=0)) == ({}, 0, [])


@pytest.mark.parametrize("statement", ["UPDATE scheduling_event SET kind = 'x'", "DELETE FROM scheduling_event"])
def test_events_can_be_neither_changed_nor_deleted(cell: Cell, statement: str) -> None:
    with journal.write(cell.id, ME) as entry:
        entry.append(events.CellSet(settings={"a": 1}))
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


def test_tail_never_cuts_a_revision_in_two(cell: Cell) -> None:
    for size in (3, 4, 2):
        with journal.write(cell.id, ME) as entry:
            entry.extend(events.MachineRemoved(machine_id=n) for n in range(size))
    assert [len(journal.tail(cell.id, after=0, limit=limit)) for limit in (1, 4, 9)] == [3, 7, 9]
    assert {record.revision for record in journal.tail(cell.id, after=1)} == {2, 3}


def test_a_reader_never_meets_a_smaller_revision_later(cell: Cell) -> None:
    stop = threading.Event()

    def write_many() -> None:
        try:
            for _ in range(40):
                with journal.write(cell.id, ME) as entry:
                    entry.append(events.CellSet(settings={}))
        finally:
            connection.close()

    writers = [threading.Thread(target=write_many) for _ in range(3)]
    for writer in writers:
        writer.start()
    seen: list[int] = []
    while not stop.is_set():
        finished = not any(writer.is_alive() for writer in writers)
        seen += [record.revision for record in journal.tail(cell.id, after=seen[-1] if seen else 0)]
        if finished:
            stop.set()
    assert seen == list(range(1, 121))


def partitions(cell: Cell) -> list[tuple[int, int]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT first, until FROM scheduling_event_partition WHERE cell_id = %s ORDER BY 1", [cell.id])
        return cursor.fetchall()


def test_each_cell_has_partitions_of_its_own_from_the_start(cell: Cell) -> None:
    assert partitions(cell) == [(0, journal.PARTITION)]
    assert partitions(Cell.objects.create(name="dd", revision=7 * journal.PARTITION + 5)) == [
        (7 * journal.PARTITION, 8 * journal.PARTITION)
    ]


def test_partitions_are_made_ahead_of_the_revisions(cell: Cell) -> None:
    Cell.objects.filter(pk=cell.pk).update(revision=900 * journal.PARTITION - 1)
    assert journal.ensure_partitions() == 3
    with journal.write(cell.id, ME) as entry:
        entry.append(events.CellSet(settings={}))
    assert journal.newest(cell.id) == 900 * journal.PARTITION
    assert journal.ensure_partitions() == 1
    assert journal.ensure_partitions() == 0


def test_a_writer_makes_the_next_partition_if_nothing_else_did(cell: Cell) -> None:
    Cell.objects.filter(pk=cell.pk).update(revision=journal.PARTITION // 4 * 3 - 1)
    with journal.write(cell.id, ME) as entry:
        entry.append(events.CellSet(settings={}))
    assert partitions(cell) == [(0, journal.PARTITION), (journal.PARTITION, 2 * journal.PARTITION)]


def test_partitions_are_made_while_a_writer_is_in_its_transaction(cell: Cell) -> None:
    def make() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '5s'")
            made.append(journal.ensure_partitions())
        finally:
            connection.close()

    made: list[int] = []
    with journal.write(cell.id, ME) as entry:
        entry.append(events.CellSet(settings={}))
        entry._flush()
        maker = threading.Thread(target=make)
        maker.start()
        maker.join(20)
        entry._lines.clear()
    assert made == [2]


def test_the_migration_keeps_all_events_and_can_be_undone(cell: Cell) -> None:
    """The migration to partitions per cell keeps all events, also if cells share a partition. So does its reverse."""
    migration = import_module("scheduling.migrations.0032_the_journal_has_partitions_per_cell")
    other = Cell.objects.create(name="dd")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(migration.BACK)
        for number, revision in ((cell.id, 1), (other.id, 5), (cell.id, 250_000), (other.id, 1_000_007)):
            Cell.objects.filter(pk=number).update(revision=revision - 1)
            with journal.write(number, ME) as entry:
                entry.extend([events.CellSet(settings={"at": revision}), events.CellSet(settings={})])
        cursor.execute("SELECT * FROM scheduling_event ORDER BY cell_id, revision, seq")
        before = cursor.fetchall()
        for forwards in (migration.CLAIM, migration.CHECK, migration.EXPAND):
            cursor.execute(forwards)
        assert partitions(cell) == [(0, 100_000), (200_000, 300_000), (300_000, 400_000)]
        assert partitions(other) == [(0, 100_000), (1_000_000, 1_200_000)]
        for step in ("", migration.BACK, migration.CLAIM, migration.CHECK, migration.EXPAND):
            cursor.execute(step or "SELECT 1")
            cursor.execute("SELECT * FROM scheduling_event ORDER BY cell_id, revision, seq")
            assert cursor.fetchall() == before
        with journal.write(cell.id, ME) as entry:
            entry.append(events.CellSet(settings={}))
        assert Event.objects.get(revision=250_001).id > max(row[0] for row in before)
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            cursor.execute("DELETE FROM scheduling_event")
        transaction.set_rollback(True)


def test_whatever_a_text_holds_it_is_read_as_it_was_written(cell: Cell) -> None:
    odd = 'tab\t, line\n, return\r, "quotes", back\\slash \\N, null, {braces}, ü, \u2028'
    who = Principal(name=odd, request_id="a\tb\\")
    with journal.write(cell.id, who) as entry:
        entry.append(events.MachineState(machine_id=7, state="down", reason=odd))
        entry.append(events.JobRejected(tenant="t", name="n", code="c", detail=odd, figures={odd: [odd]}))
    machine, job = journal.tail(cell.id, after=0)
    assert (machine.actor, machine.request_id) == (odd, "a\tb\\")
    assert isinstance(machine.event, events.MachineState)
    assert machine.event.reason == odd
    assert isinstance(job.event, events.JobRejected)
    assert job.event.figures == {odd: [odd]}
    assert Event.objects.get(seq=1).data["detail"] == odd


def test_what_a_reader_wrote_itself_it_need_not_read_again(cell: Cell) -> None:
    known = {}
    for number in range(1, 7):
        with journal.write(cell.id, ME) as entry:
            first = entry.append(events.MachineState(machine_id=number, state="down"))
            entry.append(events.MachineState(machine_id=number, state="up"), caused_by=first)
        if number % 2:
            known[number] = entry.records()
    everything = journal.tail(cell.id, after=0)
    assert [record for records in known.values() for record in records] == [
        record for record in everything if record.revision % 2
    ]
    assert journal.tail(cell.id, after=0, known=known) == everything
    assert journal.tail(cell.id, after=4, known=known) == everything[8:]
    assert journal.tail(cell.id, after=6, known=known) == []
    with CaptureQueriesContext(connection) as captured:
        assert journal.tail(cell.id, after=5, known={6: everything[10:]}) == everything[10:]
    assert len(captured) == 1


def test_a_reader_that_reads_in_parts_is_never_ahead_of_what_it_has_not_read(cell: Cell) -> None:
    known = {}
    for number in range(1, 6):
        with journal.write(cell.id, ME) as entry:
            entry.append(events.MachineState(machine_id=number, state="down"))
        if number in (2, 5):
            known[number] = entry.records()
    part = journal.tail(cell.id, after=0, limit=2, known=known)
    assert [record.revision for record in part] == [1, 2, 3]
    rest = journal.tail(cell.id, after=3, limit=2, known=known)
    assert [record.revision for record in rest] == [4, 5]
