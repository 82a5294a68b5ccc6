"""Tests of many actions at once, in real threads with real locks: no deadlock, and a consistent cell at the end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import connection

from borglet.messages import Hello
from quota.models import QuotaUse
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary import events, task_events
from scheduling.jobs import submit_and_kill, updates
from scheduling.journal import journal
from scheduling.link.shard import writer
from scheduling.machines.machines import machine_undrain, machines_down, machines_drain
from scheduling.master.invariants import validate
from scheduling.models import Cell, Job, Machine, Task
from scheduling.tasks import new_tasks, transitions
from tests.integration import rows, world
from tests.integration.simulated_cell import SimulatedCell

pytestmark = pytest.mark.django_db(transaction=True)
SRE = system("sre")
WAIT_S = 60.0


class Threads:
    """A group of threads, each of which runs one function. `join` waits for all and raises their exceptions."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(20)
        self._futures: list[Future[object]] = []

    def start(self, function: Callable[[], object]) -> None:
        self._futures.append(self._pool.submit(self._run, function))

    def join(self) -> None:
        for future in self._futures:
            future.result(WAIT_S)
        self._pool.shutdown()

    def _run(self, function: Callable[[], object]) -> object:
        try:
            return function()
        finally:
            connection.close()


def wait_until_blocked(number: int = 1) -> None:
    """Wait until `number` other sessions of this database wait for a lock."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute(
                # Only sessions of this database count, because tests of other workers wait for locks too.
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
                " AND locktype IN ('transactionid', 'tuple') AND pid IN (SELECT pid FROM pg_locks WHERE database"
                " = (SELECT oid FROM pg_database WHERE datname = current_database()))"
            )
            if cursor.fetchone()[0] >= number:
                return
        time.sleep(0.01)
    raise AssertionError("nobody waits for a lock")


@pytest.fixture
def cell() -> Cell:
    return rows.a_cell()


@pytest.fixture
def tenant(cell):
    tenant = rows.a_tenant()
    for band in ("batch", "production"):
        rows.grant(tenant, cell, band)
    return tenant


def test_a_killed_job_keeps_no_task_that_was_added_meanwhile(cell, tenant) -> None:
    job = world.submit(SRE, cell, world.a_file(), tenant=tenant.name)
    groups = world.read(cell, world.a_file(tasks=5), tenant=tenant.name).groups(3, 4)
    threads = Threads()
    with journal.write(cell.id, rows.ME) as entry:
        threads.start(lambda: submit_and_kill.job_kill(principal=SRE, job=job))
        wait_until_blocked()
        entry.append(events.TasksAdded(job_id=job.id, groups=groups, spec_version=1))
        new_tasks.tasks_create(entry, [new_tasks.NewTasks(job.id, groups, 1)])
    threads.join()
    assert set(Task.objects.filter(job=job).values_list("state", flat=True)) == {"dead"}
    assert Job.objects.get(pk=job.pk).state == "dead"


def test_quota_goes_back_once_when_the_last_task_ends_and_is_killed_at_once(cell, tenant) -> None:
    for turn in range(5):
        machine = rows.a_machine(cell, f"m{turn}")  # after an early kill, it still has to stop the task
        job = world.submit(SRE, cell, world.a_file(f"j{turn}", tasks=1), tenant=tenant.name)
        world.submit(SRE, cell, world.a_file(f"stays{turn}", tasks=1), tenant=tenant.name)
        world.bring_up(job, machine)
        task = Task.objects.get(job=job)
        ended = task_events.Ending(task.id, "finished", task.incarnation, gone=True)
        threads = Threads()

        def report(ended: task_events.Ending = ended) -> None:
            with journal.write(cell.id, rows.ME) as entry:
                transitions.tasks_end(entry, [ended])

        with journal.write(cell.id, rows.ME) as entry:
            threads.start(report)
            threads.start(lambda job=job: submit_and_kill.job_kill(principal=SRE, job=job))
            wait_until_blocked(2)
            entry.append(events.JobRejected(tenant="x", name="y", code="test", detail="", figures={}))
        threads.join()
        assert Job.objects.get(pk=job.pk).state == "dead"
        used = QuotaUse.objects.get(tenant=tenant, band__name="production").used
        assert used[0] == 100 * (turn + 1), "what the jobs that stay ask for"
    assert validate(cell.id) == []


def test_everybody_at_once(cell, tenant) -> None:
    """Threads submit, update, kill and report jobs and drain machines at once. The cell stays consistent."""
    fleet = [rows.a_machine(cell, f"m{number}", rack=f"r{number}") for number in range(3)]
    threads = Threads()

    def people(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(15):
            file = world.with_task(rng.choice(["web", "db"]), tasks=rng.randint(1, 6), command=[rng.choice(["a", "b"])])
            file["priority"] = rng.choice([0, 110, 200])
            read = world.read(cell, file, tenant=tenant.name)
            live = Job.objects.select_related("cell", "tenant").filter(cell=cell, name=read.name)
            job = live.exclude(state="dead").first()
            try:
                if rng.random() < 0.3 and job is not None:
                    submit_and_kill.job_kill(principal=SRE, job=job)
                elif rng.random() < 0.2 and job is not None and job.spec_version > 1:
                    updates.job_undo(principal=SRE, job=job)
                else:
                    submit_and_kill.job_apply(principal=SRE, cell=cell, job_spec=read)
            except Rejected as problem:
                if problem.code not in ("job-exists", "job-ended", "quota-exceeded"):
                    raise

    def master() -> None:
        scheduler = SimulatedCell(cell)
        for _ in range(15):
            scheduler.commit(scheduler.decide())
            updates.updates_advance(cell.id)

    def shard(machine: Machine) -> None:
        scheduler = SimulatedCell(cell)
        borglet = scheduler.add(machine)
        for turn in range(15):
            scheduler.talk(borglet)
            if turn % 5 == 4:
                machines_down(principal=SRE, cell_id=cell.id, machine_ids=[machine.id], reason="silent")

    def sre() -> None:
        for turn in range(10):
            row = Machine.objects.select_related("cell").get(pk=fleet[turn % 3].pk)
            if turn % 2:
                machines_drain(principal=SRE, cell=row.cell, machines=[row], reason="maintenance")
            else:
                machine_undrain(principal=SRE, machine=row, reason="maintenance")

    for seed in range(3):
        threads.start(lambda seed=seed: people(seed))
    for _ in range(2):
        threads.start(master)
    for machine in fleet:
        threads.start(lambda machine=machine: shard(machine))
    threads.start(sre)
    threads.join()
    assert validate(cell.id) == []


def test_each_hello_of_a_machine_gets_its_own_session(cell) -> None:
    fleet = [rows.a_machine(cell, f"m{number}") for number in range(5)]
    hellos = {machine.id: Hello(1, machine.hostname, "boot", "1") for machine in fleet}
    threads, answers = Threads(), []

    def shard() -> None:
        for _ in range(10):
            answers.append(writer.greet(cell.id, hellos))

    for _ in range(4):
        threads.start(shard)
    threads.join()
    for machine in fleet:
        assert sorted(answer[machine.id] for answer in answers) == list(
            range(machine.session + 1, machine.session + 41)
        )
