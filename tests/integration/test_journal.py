"""The journal on real PostgreSQL: one revision a change, append-only, read in order of commit."""

from __future__ import annotations

import threading

import pytest
from django.db import DatabaseError, connection, transaction

from quota.permissions import system
from scheduling import journal
from scheduling.core import events
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
            events.TaskEvicted(job_id=3, index=1, machine_id=7, incarnation=2, cause="machine-failure"),
            caused_by=first,
        )
    machine, task = journal.tail(cell.id, after=0)
    assert (machine.revision, machine.seq, task.revision, task.seq) == (1, 0, 1, 1)
    assert task.caused_by == first
    assert task.event == events.TaskEvicted(
        job_id=3, index=1, machine_id=7, incarnation=2, cause="machine-failure"
    )
    row = Event.objects.get(seq=1)
    assert (row.job_id, row.task_index, row.machine_id, row.actor) == (3, 1, 7, "system:test")


def test_a_block_without_events_takes_no_revision(cell: Cell) -> None:
    with journal.write(cell.id, ME):
        pass
    assert journal.newest(cell.id) == 0


def test_a_failing_block_leaves_neither_row_nor_event(cell: Cell) -> None:
    with pytest.raises(ZeroDivisionError), journal.write(cell.id, ME) as entry:  # noqa: PT012 - the block is the case
        Cell.objects.filter(pk=cell.pk).update(site="moved")
        entry.append(events.CellSet(settings={}))
        raise ZeroDivisionError
    cell.refresh_from_db()
    assert (cell.site, cell.revision, journal.tail(cell.id, after=0)) == ("", 0, [])


@pytest.mark.parametrize(
    "statement", ["UPDATE scheduling_event SET kind = 'x'", "DELETE FROM scheduling_event"]
)
def test_events_can_be_neither_changed_nor_deleted(cell: Cell, statement: str) -> None:
    with journal.write(cell.id, ME) as entry:
        entry.append(events.CellSet(settings={"a": 1}))
    with (
        pytest.raises(DatabaseError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
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


def test_partitions_are_made_ahead_of_the_revisions(cell: Cell) -> None:
    Cell.objects.filter(pk=cell.pk).update(revision=900 * journal.PARTITION - 1)
    journal.ensure_partitions()
    with journal.write(cell.id, ME) as entry:
        entry.append(events.CellSet(settings={}))
    assert journal.newest(cell.id) == 900 * journal.PARTITION
    assert journal.ensure_partitions() > 0
    assert journal.ensure_partitions() == 0
