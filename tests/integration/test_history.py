"""Tests of a cell after a restore (DESIGN §2.4).

Tasks that run but are unknown to the restored database are kept and shown. They are not confused with tasks that are
placed later.
"""

from __future__ import annotations

import pytest
from django.db import connection

from quota.vocabulary.permissions import system
from scheduling.cells.cells import cell_new_history
from scheduling.journal import journal
from scheduling.machines.machines import quarantine_release
from scheduling.master.loop import Master
from scheduling.models import JobSpec, Machine, Task
from tests.integration import rows, world
from tests.integration.simulated_cell import SimulatedCell

pytestmark = pytest.mark.django_db(transaction=True)
SRE = system("sre")


@pytest.fixture
def lost():
    """Return a cell, its machine and a job. The machine runs a task that the restored database has not placed."""
    cell = rows.a_cell()
    machine = SimulatedCell(cell)
    borglet = machine.add(rows.a_machine(cell))
    job = rows.a_job(cell, rows.a_tenant(), tasks=1)
    machine.commit(machine.decide())
    for _ in range(2):
        machine.talk(borglet)
    assert Task.objects.get(job=job).up
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE scheduling_task SET state = 'pending', incarnation = 0, machine_id = NULL, phase = '',"
            " up = false, ports = '{}'"
        )
        cursor.execute(
            "UPDATE scheduling_job SET state = 'pending', tasks_pending = 1, tasks_running = 0, tasks_up = 0"
        )
    cell = cell_new_history(principal=SRE, cell=cell)
    borglet.in_flight.clear()
    return SimulatedCell(cell), borglet, job


def settle(cell: SimulatedCell, borglet) -> None:
    for _ in range(3):
        cell.talk(borglet)


def test_what_the_restored_database_does_not_know_runs_on_and_is_shown(lost) -> None:
    cell, borglet, _ = lost
    cell.machines.append(borglet)
    settle(cell, borglet)
    assert len(borglet.runs) == 1
    (item,) = Machine.objects.get().quarantined
    assert (item["key"], item["release"]) == (str(next(iter(borglet.runs))), "")


def test_a_task_placed_again_is_never_taken_for_the_one_that_was_forgotten(lost) -> None:
    """A task that is placed again gets a new incarnation. It starts after an SRE has stopped the unknown one."""
    cell, borglet, job = lost
    forgotten = next(iter(borglet.runs))
    other = world.with_task(job.name, tasks=1, command=["serve", "again"]) | {"priority": 200}
    stored = JobSpec.objects.get(job=job)
    stored.spec = world.read(cell.cell, other).to_json()
    stored.save()
    settle(cell, borglet)
    cell.commit(cell.decide())
    settle(cell, borglet)
    task = Task.objects.get(job=job)
    assert task.state == "running"
    assert task.incarnation != forgotten.incarnation
    assert set(borglet.runs) == {forgotten}, "two at once"
    (item,) = Machine.objects.get().quarantined
    machine = Machine.objects.select_related("cell").get()
    quarantine_release(principal=SRE, machine=machine, keys=[item["key"]], action="stop")
    settle(cell, borglet)
    assert {key.incarnation for key in borglet.runs} == {task.incarnation}
    assert Task.objects.get(job=job).up
    settle(cell, borglet)
    assert Machine.objects.get().quarantined == []


def test_incarnations_begin_beyond_those_of_every_earlier_history() -> None:
    cell = rows.a_cell()
    machine = rows.a_machine(cell)
    job = rows.a_job(cell, rows.a_tenant(), tasks=2)
    world.place(job, machine, 0)
    cell_new_history(principal=SRE, cell=cell)
    cell_new_history(principal=SRE, cell=cell)
    world.place(job, machine, 1)
    assert list(Task.objects.order_by("index").values_list("incarnation", flat=True)) == [1, 2_000_001]


def test_a_master_that_knows_a_lost_history_reads_the_rows_again() -> None:
    cell = rows.a_cell()
    rows.a_machine(cell)
    master = Master(cell.id)
    master.tick()
    job = rows.a_job(cell, rows.a_tenant(), tasks=2)
    master.tick()
    assert Task.objects.filter(job=job, state="running").count() == 2
    with connection.cursor() as cursor:  # rows as in a restored database
        cursor.execute("UPDATE scheduling_task SET state = 'dead', machine_id = NULL, ports = '{}', outcome = 'killed'")
        cursor.execute("UPDATE scheduling_job SET state = 'dead', tasks_running = 0, tasks_dead = 2")
    cell_new_history(principal=SRE, cell=cell)
    master.tick()
    assert master.state is not None
    assert master.state.revision == journal.newest(cell.id)
    assert job.id not in master.state.tasks.jobs
