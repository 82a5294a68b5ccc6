"""Tests of names: the names read from rows are those replayed from the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from naming.following.names_from_database import snapshot as snapshot_of
from naming.table.table import NameTable
from scheduling.core.vocabulary import events, task_events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal
from scheduling.models import Cell, Job, Machine, Task
from scheduling.tasks import transitions
from tests.integration.naming_rows import evict, place, report
from tests.integration.rows import ME, a_cell, a_job, a_machine, a_tenant
from tests.unit.naming.cells import in_order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell() -> Cell:
    return a_cell()


def from_rows(cell: Cell) -> NameTable:
    snapshot = snapshot_of(cell.id)
    table = NameTable(cell.name, history_ordinal=snapshot.history_ordinal)
    for event in snapshot.events:
        table.apply(event, snapshot.names_revision)
    table.revision, table.names_revision = snapshot.revision, snapshot.names_revision
    return table


def from_journal(cell: Cell) -> NameTable:
    table = NameTable(cell.name)
    for record in journal.tail(cell.id, after=0):
        table.apply(record.event, record.revision)
    return table


def names(table: NameTable) -> dict[str, Any]:
    """Return everything in a table of names that clients can see, except the times of changes."""
    jobs = {}
    for job in table.jobs.values():
        tasks = {
            task.index: (task.address, task.incarnation, task.named_ports(), task.phase, task.health, task.weight)
            for task in in_order(job.placed)
        }
        serving = [task.index for task in in_order(job.serving)]
        present = [index for index in range(50) if index in job.indexes]
        facts = (job.kind, job.fails_open, job.port_names, job.ttl_s, job.weights)
        jobs[job.tenant, job.name] = (tasks, serving, present, *facts)
    return {
        "jobs": jobs,
        "services": {
            (tenant, name): sorted(service.jobs)
            for tenant, services in table.services.items()
            for name, service in services.items()
        },
        "reverse": {path: set(table.reverse.owners(path, 99)) for path in table.reverse._owners},
        "hosts": {host: m.address for host, m in table.hosts.items()},
        "serial": table.serial,
    }


def test_rows_and_journal_tell_the_same_names(cell: Cell) -> None:
    ubar, other = a_tenant(), a_tenant("other")
    machines = [a_machine(cell, f"m{n}") for n in range(3)]
    web, done, idle = (a_job(cell, ubar, tasks=5), a_job(cell, ubar, "done", tasks=2), a_job(cell, other, "idle"))
    place(cell, web, machines[0], 0, 1)
    place(cell, web, machines[1], 2, 3)
    place(cell, done, machines[2], 0, 1)
    for index in range(3):
        report(cell, web, index)
    report(cell, web, 1, health="unhealthy")
    report(cell, web, 3, phase="starting", health="unknown")
    evict(cell, web, 2)
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_end(entry, [task_events.Ending(task_id(done.id, i), "finished") for i in range(2)])
        Machine.objects.filter(pk=machines[2].pk).update(state="removed")
        entry.append(events.MachineRemoved(machine_id=machines[2].id))
    with journal.write(cell.id, ME) as entry:
        entry.append(events.LeaseTaken(scheduler="default", holder="w", epoch=1))
    rows, replayed = from_rows(cell), from_journal(cell)
    assert names(rows) == names(replayed)
    assert set(names(rows)["jobs"]) == {("ubar", web.name), ("other", idle.name)}
    assert rows.revision == replayed.revision == rows.names_revision + 1


def test_tasks_of_an_older_version_keep_their_port_names(cell: Cell) -> None:
    machine, job = a_machine(cell), a_job(cell, a_tenant())
    place(cell, job, machine, 0)
    with journal.write(cell.id, ME) as entry:
        Job.objects.filter(pk=job.pk).update(spec_version=2, port_names=["grpc"])
        entry.append(
            events.JobChanged(job_id=job.id, priority=200, latency_sensitive=True, spec_version=2, port_names=("grpc",))
        )
    with journal.write(cell.id, ME) as entry:
        Task.objects.filter(job=job, index=1).update(spec_version=2)
        transitions.tasks_place(entry, [Assignment(job.id, 1, machine.id, (30_000,))])
    rows = from_rows(cell)
    assert names(rows) == names(from_journal(cell))
    ports = {task.index: task.named_ports() for task in in_order(rows.jobs[job.id].placed)}
    assert ports == {0: [("http", 20_000)], 1: [("grpc", 30_000)]}


def test_a_snapshot_costs_the_same_queries_whatever_the_number_of_jobs(
    cell: Cell, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    tenant, machine = a_tenant(), a_machine(cell)
    for number in range(5):
        job = a_job(cell, tenant, f"j{number}")
        place(cell, job, machine, 0, 1, 2, ports=20_000 + 10 * number)
    with django_assert_max_num_queries(11):
        snapshot_of(cell.id)


def test_how_jobs_are_published_and_their_services(cell: Cell) -> None:
    machine, tenant = a_machine(cell), a_tenant()
    web, canary = a_job(cell, tenant, tasks=3), a_job(cell, tenant, "canary", tasks=2)
    for job, published in ((web, Published(ttl_s=60, weights=((0, 1, 10), (2, 2, 0)))), (canary, Published())):
        with journal.write(cell.id, ME) as entry:
            labels = {"service": "front"}
            Job.objects.filter(pk=job.pk).update(labels=labels, published=msgspec.to_builtins(published))
            entry.append(
                events.JobChanged(
                    job_id=job.id,
                    priority=200,
                    latency_sensitive=True,
                    spec_version=1,
                    port_names=("http",),
                    labels=labels,
                    published=published,
                )
            )
    place(cell, web, machine, 0, 1, 2)
    place(cell, canary, machine, 0, ports=21_000)
    report(cell, canary, 0, address="10.20.30.4")
    rows = from_rows(cell)
    assert names(rows) == names(from_journal(cell))
    assert names(rows)["services"] == {(tenant.name, "front"): [web.id, canary.id]}
    assert [task.weight for task in in_order(rows.jobs[web.id].placed)] == [10, 10, 0]
    assert rows.jobs[web.id].ttl_s == 60


def test_an_unknown_cell_has_no_snapshot() -> None:
    with pytest.raises(LookupError, match="there is no cell with id 99"):
        snapshot_of(99)


def test_an_address_of_a_tasks_own_goes_with_the_incarnation(cell: Cell) -> None:
    tenant, machine = a_tenant(), a_machine(cell)
    job = a_job(cell, tenant, tasks=2)
    place(cell, job, machine, 0, 1)
    report(cell, job, 0, address="10.20.30.4")
    assert names(from_rows(cell)) == names(from_journal(cell))
    (mine, others) = [task.address for task in in_order(from_rows(cell).jobs[job.id].placed)]
    assert (mine, others) == ("10.20.30.4", machine.address)
    report(cell, job, 0, address="")
    assert Task.objects.get(job=job, index=0).address == ""
    report(cell, job, 0, address="10.20.30.5")
    evict(cell, job, 0)
    assert Task.objects.get(job=job, index=0).address == ""
    assert names(from_rows(cell)) == names(from_journal(cell))
