"""Tests of a cell's own named resources: added to a live cell, set on machines, and asked for by jobs."""

from __future__ import annotations

import pytest

from borglet.messages import Hello
from quota.models import CellCapacity, QuotaUse
from quota.vocabulary.errors import Conflict, Forbidden, Rejected
from quota.vocabulary.permissions import system
from scheduling.cells import cells
from scheduling.core.vocabulary import events
from scheduling.jobs import updates
from scheduling.journal import journal
from scheduling.link.shard import writer
from scheduling.master.loop import Master
from scheduling.models import Cell, Machine, PendingVerdict, Task
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)

SRE = system("sre")


def added(cell: Cell, name: str = "tpu") -> Cell:
    return cells.cell_resource_add(principal=SRE, cell=cell, name=name)


def fresh(machine: Machine) -> Machine:
    return Machine.objects.select_related("cell").get(pk=machine.pk)


def test_a_resource_is_added_behind_the_others_told_and_published(cell, machine) -> None:
    added(cell)
    added(cell, "fpga")
    assert cell.extra_resources == ["tpu", "fpga"]
    newest = journal.tail(cell.id, after=cell.revision - 1)[0].event
    assert isinstance(newest, events.CellSet)
    assert newest.extra_resources == ("tpu", "fpga")
    assert CellCapacity.objects.get(cell=cell.name).capacity[6:] == [0, 0]


@pytest.mark.parametrize("name", ["", "TPU", "t-pu", "9", "t" * 64, "tpu\n"])
def test_a_bad_name_is_refused(cell, name) -> None:
    with pytest.raises(Rejected) as caught:
        added(cell, name)
    assert "name" in caught.value.fields
    assert not Cell.objects.get().extra_resources


def test_names_are_taken_once_and_few(cell, ann) -> None:
    added(cell)
    for taken in ("tpu", "cpu", "ports"):
        with pytest.raises(Conflict, match=f"already has a resource {taken}; choose another name"):
            added(cell, taken)
    with pytest.raises(Forbidden):
        cells.cell_resource_add(principal=ann, cell=cell, name="fpga")
    for number in range(cells.MAX_EXTRA_RESOURCES - 1):
        added(cell, f"r{number}")
    with pytest.raises(Rejected, match="use one of these"):
        added(cell, "last")


def test_the_master_goes_on_through_a_new_resource_and_places_by_it(cell, machine, tenant, ann) -> None:
    before = world.submit(ann, cell, world.a_file("before"))
    master = Master(cell.id)
    master.tick()
    added(cell)
    cell.refresh_from_db()
    after = world.submit(ann, cell, world.with_task("after", tasks=2, limit={"cpu": "100m", "tpu": 3}))
    master.tick()
    assert master.state is not None
    assert master.state.axis == 7
    assert Task.objects.filter(job=before, state="running").count() == 3
    (why,) = PendingVerdict.objects.get(job=after).whys
    assert why["ruled_out"][0]["subject"] == "tpu"
    rows.machine_set(fresh(machine), capacity={"cpu": 64_000, "ram": 2**38, "disk": 2**42, "tpu": 5})
    master.tick()
    assert Task.objects.filter(job=after, state="running").count() == 1
    # Resources that are not sold are not charged.
    assert len(QuotaUse.objects.get(tenant=tenant).used) == 6


def test_a_task_grows_into_a_new_resource_only_where_there_is_some(cell, machine, ann) -> None:
    job = world.submit(ann, cell, world.a_file(tasks=1))
    world.bring_up(job, machine)
    added(cell)
    cell.refresh_from_db()
    file = world.with_task(tasks=1, limit={"cpu": "100m", "ram": "64Mi", "disk": "64Mi", "tpu": 1})
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    task = Task.objects.get(job=job)
    assert (task.state, task.limit[6:]) == ("pending", [1])


def test_what_people_gave_a_machine_stays_when_its_borglet_says_hello(cell, machine) -> None:
    added(cell)
    capacity = {"cpu": 64_000, "ram": 2**38, "disk": 2**42, "tpu": 5}
    rows.machine_set(fresh(machine), capacity=capacity)
    del capacity["tpu"]
    for said, had in ((capacity, 5), (capacity | {"tpu": 2}, 2)):
        hello = Hello(1, machine.hostname, "boot", "1", capacity=said)
        writer.greet(cell.id, {machine.id: hello})
        assert fresh(machine).capacity[6:] == [had]


def test_the_capacities_of_machines_with_and_without_a_new_resource_are_stored_together(cell, machine) -> None:
    other = rows.a_machine(cell, "other")
    added(cell)
    capacity = {"cpu": 64_000, "ram": 2**38, "disk": 2**42}
    rows.machine_set(fresh(machine), capacity=capacity | {"tpu": 5})
    before = {one.id: list(fresh(one).capacity) for one in (machine, other)}
    smaller = {"cpu": 1_000, "ram": 2**30, "disk": 2**30}
    writer.greet(cell.id, {one.id: Hello(1, one.hostname, "boot", "1", capacity=smaller) for one in (machine, other)})
    for one in (machine, other):
        row = fresh(one)
        assert row.capacity[:3] == [1_000, 2**30, 2**30]
        assert row.granted == before[one.id]
    assert fresh(machine).capacity[6:] == [5]
