"""The machines whose place on the map changes with events of the journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.reservation_packing import unpack
from scheduling.journal.sql import query
from scheduling.models import Event

# Events that name the machine whose sums or facts they change.
_ON_MACHINES = frozenset(
    {"task.placed", "task.evicted", "task.ended", "machine.set", "machine.state", "machine.removed"}
)
# After these events, the facts of a machine are different, and not only its state and its sums.
NEW_FACTS = frozenset({"machine.set", "machine.removed"})
_RESERVATIONS = "reservations.set"
# A reader that is so many events behind reads the whole cell.
MOST_EVENTS = 5_000


class MapEvent(Protocol):
    """An event of the journal, as far as the map needs it."""

    @property
    def kind(self) -> str: ...
    @property
    def job_id(self) -> int | None: ...
    @property
    def task_index(self) -> int | None: ...
    @property
    def machine_id(self) -> int | None: ...
    @property
    def revision(self) -> int: ...


def machines_of_events(cell_id: int, events: Iterable[MapEvent]) -> set[int]:
    """Return the ids of the machines whose sums or facts the events change. Makes at most two queries.

    Changes of limits and reservations without a restart, and changes of the priority of a job, have events without a
    machine, so their machines are looked up.
    """
    machines: set[int] = set()
    jobs: set[int] = set()
    tasks: list[int] = []
    reserved: set[int] = set()
    for event in events:
        if event.kind in _ON_MACHINES:
            if event.machine_id:
                machines.add(event.machine_id)
        elif event.kind == "job.changed" and event.job_id is not None:
            jobs.add(event.job_id)
        elif event.kind == "task.updated" and event.job_id is not None and event.task_index is not None:
            tasks.append(task_id(event.job_id, event.task_index))
        elif event.kind == _RESERVATIONS:
            reserved.add(event.revision)
    if reserved:
        tasks += _reserved_tasks(cell_id, reserved)
    if tasks or jobs:
        machines.update(
            machine_id
            for (machine_id,) in query(
                "SELECT machine_id FROM scheduling_task WHERE machine_id IS NOT NULL AND id = ANY(%s)"
                " UNION SELECT machine_id FROM scheduling_task WHERE machine_id IS NOT NULL AND job_id = ANY(%s)",
                [tasks, list(jobs)],
            )
        )
    return machines


def _reserved_tasks(cell_id: int, revisions: set[int]) -> list[int]:
    """Return the ids of the tasks whose reservations were set at these revisions. Makes one query."""
    rows = Event.objects.filter(cell_id=cell_id, revision__in=revisions, kind=_RESERVATIONS)
    packed = [text for text in rows.order_by().values_list("data__packed", flat=True) if text]
    return [task_id(job, index) for text in packed for job, index in unpack(text)[0]]
