"""Tests of how many tasks of a job a drain may take down: disruption budgets, allocs, and tasks that do not come up."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal
from scheduling.machines import evacuation, machines
from scheduling.models import Job, Task
from scheduling.policy.cell_settings import CellSettings
from scheduling.tasks import transitions
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)

SETTINGS = CellSettings()


def drain(cell) -> int:
    """Evict tasks as the master does in one second, and return how many."""
    return evacuation.tasks_leave(cell.id, SETTINGS, seconds=1.0)


def draining(machine) -> None:
    machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk")


def running(job: Job) -> int:
    return Task.objects.filter(job=job, state="running").count()


def aged(job: Job, seconds: float, *indexes: int) -> None:
    """Set the time since when these tasks have been in their present state to `seconds` seconds ago."""
    Task.objects.filter(job=job, index__in=indexes).update(since=timezone.now() - dt.timedelta(seconds=seconds))


def test_a_budget_bounds_a_drain_until_siblings_are_up_again(cell, machine, ann) -> None:
    job = world.submit(ann, cell, world.a_file(tasks=20, disruption_budget=3))
    world.bring_up(job, machine)
    draining(machine)
    assert drain(cell) == 3  # without a budget, it would be a tenth of the tasks: 2
    assert drain(cell) == 0
    elsewhere = rows.a_machine(cell, "m2")
    world.place(job, elsewhere, 0, 1)
    assert drain(cell) == 0  # a placed task is not up yet
    world.report(job, 0, 1)
    assert drain(cell) == 2


def test_a_sibling_that_never_comes_up_holds_a_drain_up_for_a_while_only(cell, machine, ann) -> None:
    job = world.submit(ann, cell, world.a_file(tasks=4, disruption_budget=1))
    world.bring_up(job, machine)
    elsewhere = rows.a_machine(cell, "m2")
    draining(machine)
    assert drain(cell) == 1
    world.place(job, elsewhere, 0)
    world.report(job, 0, up=False, restarts=9)
    assert drain(cell) == 0
    aged(job, SETTINGS.drain_patience_s + 1, 0)
    assert drain(cell) == 1
    assert drain(cell) == 0


def test_a_job_without_budget_left_keeps_no_other_from_leaving(cell, machine, ann, monkeypatch) -> None:
    """A job with a used-up disruption budget delays no other job. Its tasks fill the part of the queue that is read."""
    monkeypatch.setattr(journal, "CHUNK", 4)
    urgent = world.submit(ann, cell, world.a_file("urgent", tasks=8, priority=300, disruption_budget=1))
    other = world.submit(ann, cell, world.a_file("other", tasks=1))
    with journal.write(cell.id, rows.ME) as entry:
        for job, number, port in ((urgent, 8, 20_000), (other, 1, 21_000)):
            places = [Assignment(job.id, i, machine.id, ports=(port + i,)) for i in range(number)]
            transitions.tasks_place(entry, places)
    world.report(urgent, *range(8))
    world.report(other, 0)
    draining(machine)
    assert drain(cell) == 1
    assert drain(cell) == 1
    assert (running(urgent), running(other)) == (7, 0)


@pytest.fixture
def shelf(cell, ann, machine):
    """Return an alloc set whose two allocs are placed and up."""
    shelf = world.submit(
        ann, cell, {"name": "shelf", "kind": "AllocSet", "priority": 200, "tasks": 2, "task": {"limit": {"cpu": 1}}}
    )
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_place(entry, [Assignment(shelf.id, i, machine.id) for i in range(2)])
    world.report(shelf, 0, 1)
    return shelf


def put(job: Job, shelf: Job, machine, where: dict[int, int]) -> None:
    with journal.write(job.cell_id, rows.ME) as entry:
        transitions.tasks_place(
            entry,
            [
                Assignment(job.id, index, machine.id, ports=(20_000 + index,), alloc=task_id(shelf.id, alloc))
                for index, alloc in where.items()
            ],
        )
    world.report(job, *where)


def test_an_alloc_leaves_with_all_inside_when_their_budgets_allow_it(cell, machine, ann, shelf) -> None:
    web = world.submit(ann, cell, world.a_file("web", alloc_set="shelf", disruption_budget=1))
    put(web, shelf, machine, {0: 0, 1: 0, 2: 1})
    draining(machine)
    # Two tasks of web are in the first alloc, more than its budget. None is down yet, and an alloc leaves whole.
    assert drain(cell) == 3
    assert (running(shelf), running(web)) == (1, 1)
    assert drain(cell) == 0
    aged(web, SETTINGS.drain_patience_s + 1, 0, 1)
    assert drain(cell) == 0  # the set's own budget: one alloc is down
    aged(shelf, SETTINGS.drain_patience_s + 1, 0)
    assert drain(cell) == 2
    assert (running(shelf), running(web)) == (0, 0)


def test_what_lives_in_an_alloc_of_a_dead_machine_leaves_with_it(cell, machine, ann, shelf) -> None:
    web = world.submit(ann, cell, world.a_file("web", alloc_set="shelf", priority=120))
    put(web, shelf, machine, {0: 0, 1: 0, 2: 1})
    rows.machine_down(machine)
    assert evacuation.tasks_evict_from(cell.id, 1) == 3
    assert evacuation.tasks_evict_from(cell.id, 1) == 2
    machines.machine_remove(principal=rows.ME, machine=machine, reason="sold")
    assert Task.objects.filter(state="pending").count() == 5
