"""The machines whose place on the map changes with events of the journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal.sql import query

# Events that name the machine whose sums or facts they change.
_ON_MACHINES = frozenset(
    {"task.placed", "task.evicted", "task.ended", "machine.set", "machine.state", "machine.removed"}
)
# Reclamation writes this event every five seconds, for up to 5,000 tasks. Like usage, reservations are measured values:
# the kept map reads all of them again from time to time, and not those of single events.
RESERVATIONS = "reservations.set"
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


def machines_of_events(events: Iterable[MapEvent]) -> set[int]:
    """Return the ids of the machines whose sums or facts the events change, without changed reservations. Makes at
    most one query: changes of limits without a restart, and of the priority of a job, have events without a machine.
    """
    machines: set[int] = set()
    jobs: set[int] = set()
    tasks: list[int] = []
    for event in events:
        if event.kind in _ON_MACHINES:
            if event.machine_id:
                machines.add(event.machine_id)
        elif event.kind == "job.changed" and event.job_id is not None:
            jobs.add(event.job_id)
        elif event.kind == "task.updated" and event.job_id is not None and event.task_index is not None:
            tasks.append(task_id(event.job_id, event.task_index))
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
