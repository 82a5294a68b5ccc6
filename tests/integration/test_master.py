"""Tests of the master on real PostgreSQL and Redis: it reads events and places tasks, alone or beside another."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client import REGISTRY

from quota.models import Tenant
from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.jobs import updates
from scheduling.journal import journal, wakeups
from scheduling.machines.silent_machines import Silence
from scheduling.master import lease
from scheduling.master import loop as master_module
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.master.snapshot import load_state
from scheduling.models import Cell, Job, JobSpec, Lease, PendingVerdict, Task
from scheduling.policy.cell_settings import CellSettings
from scheduling.tasks import reported_states
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture(autouse=True)
def _sound(cell):
    """Check after each test that the cell is consistent, except for quota: these jobs are not charged to any."""
    yield
    assert [problem for problem in validate(cell.id) if "is charged" not in problem] == []


def ticked(cell) -> Master:
    master = Master(cell.id)
    master.tick()
    return master


def placed(job: Job) -> int:
    return Task.objects.filter(job=job, state="running").count()


def test_pending_tasks_are_placed_and_spread(cell) -> None:
    for name in ("m1", "m2", "m3"):
        rows.a_machine(cell, name, rack=f"r-{name}")
    job = rows.a_job(cell, rows.a_tenant())
    ticked(cell)
    assert placed(job) == 3
    assert Task.objects.filter(job=job).values("machine").distinct().count() == 3


def test_the_warm_state_follows_the_journal(cell) -> None:
    rows.a_machine(cell)
    master = ticked(cell)
    job = rows.a_job(cell, rows.a_tenant())
    master.tick()
    assert placed(job) == 3
    assert master.state is not None
    master.tick()
    assert master.state.revision == journal.newest(cell.id)


def test_what_a_master_wrote_itself_it_does_not_read_again(cell) -> None:
    rows.a_machine(cell)
    job = rows.a_job(cell, rows.a_tenant())
    master = ticked(cell)
    other = rows.a_job(cell, rows.a_tenant(), "other", tasks=50)
    master.tick()
    assert (placed(job), placed(other)) == (3, 50)
    with CaptureQueriesContext(connection) as captured:
        master.tick()
    read = [query["sql"] for query in captured if "data::text" in query["sql"]]
    assert read, "it has read the journal"
    with connection.cursor() as cursor:
        for statement in read:
            cursor.execute(statement)
            assert cursor.fetchall() == [], "its own placements are known to it"
    assert master.state is not None
    assert master.state.running == 53
    assert master.state.diff(load_state(cell.id)) == []


def test_a_large_queue_is_placed_in_turns(cell, monkeypatch) -> None:
    """A large queue is placed in parts. A more urgent job that arrives meanwhile is placed first in the next part."""
    monkeypatch.setattr(master_module, "PLACED_AT_ONCE", 20)
    rows.a_machine(cell)
    tenant = rows.a_tenant()
    large = rows.a_job(cell, tenant, "large", tasks=50, priority=100)
    master = Master(cell.id)
    assert master.tick(), "there is more to place"
    assert placed(large) == 20
    urgent = rows.a_job(cell, tenant, "urgent")
    assert master.tick()
    assert (placed(large), placed(urgent)) == (37, 3)
    master.tick()
    assert placed(large) == 50


def test_after_an_urgent_job_the_turns_of_a_large_queue_are_short(cell, monkeypatch) -> None:
    monkeypatch.setattr(master_module, "PLACED_AT_ONCE", 20)
    monkeypatch.setattr(master_module, "_FEWER_AT_ONCE", 5)
    monkeypatch.setattr(master_module, "_FEWER_FOR_S", 60.0)  # however slowly this test runs
    rows.a_machine(cell)
    tenant = rows.a_tenant()
    large = rows.a_job(cell, tenant, "large", tasks=60, priority=100)
    master = Master(cell.id)
    master.tick()
    assert placed(large) == 20
    equal = rows.a_job(cell, tenant, "equal", priority=100)
    master.tick()
    assert placed(large) + placed(equal) == 40, "a job that is not more urgent changes nothing"
    urgent = rows.a_job(cell, tenant, "urgent")
    master.tick()
    assert (placed(large) + placed(equal), placed(urgent)) == (42, 3)


class WatchedSilence(Silence):
    """A `Silence` that calls `watch` when a master looks for silent machines, which begins its maintenance."""

    def __init__(self, watch: Callable[[], None]) -> None:
        super().__init__()
        self.watch = watch

    def sweep(self, cell_id: int, settings: CellSettings) -> list[int]:
        self.watch()
        return super().sweep(cell_id, settings)


def test_tasks_that_can_be_placed_do_not_wait_for_the_maintenance(cell) -> None:
    rows.a_machine(cell)
    job = rows.a_job(cell, rows.a_tenant())
    before: list[int] = []
    Master(cell.id, _silence=WatchedSilence(lambda: before.append(placed(job)))).tick()
    assert before == [3]


def test_tasks_that_come_during_the_maintenance_wait_for_one_part_of_it(cell) -> None:
    rows.a_machine(cell)
    tenant = rows.a_tenant()
    master = Master(cell.id, _silence=WatchedSilence(lambda: jobs.append(rows.a_job(cell, tenant))))
    jobs: list[Job] = []
    with CaptureQueriesContext(connection) as queries:
        master.tick()
    assert placed(jobs[0]) == 3
    statements = [query["sql"] for query in queries]
    placing = next(i for i, sql in enumerate(statements) if sql.startswith("UPDATE scheduling_task"))
    evacuating = next(i for i, sql in enumerate(statements) if 'FROM "scheduling_brake"' in sql)
    assert placing < evacuating


def test_a_large_job_is_made_in_turns(cell, monkeypatch) -> None:
    """If the submitter of a large job dies half way, the master creates the other tasks in parts, and places them."""
    monkeypatch.setattr(journal, "CHUNK", 4)
    rows.a_machine(cell)
    ann = world.principal("ann", tenant=rows.a_tenant())
    job = world.submit(ann, cell, world.a_file("parts", tasks=4, priority=0))
    whole = world.read(cell, world.a_file("parts", tasks=14, priority=0))
    JobSpec.objects.filter(job=job).update(spec=whole.to_json(), digest=whole.digest())
    Job.objects.filter(pk=job.pk).update(requested=list(whole.total))
    with journal.write(cell.id, rows.ME) as entry:
        updates.update_open(entry, job, from_version=0, to_spec=whole, actor="ann")
    master = Master(cell.id)
    seen = []
    for _ in range(8):
        again = master.tick()
        job.refresh_from_db()
        seen.append(job.tasks_total)
        if not again:
            break
    assert seen[:3] == [8, 12, 14]
    assert (placed(job), master.tick()) == (14, False)


def test_what_can_not_be_placed_says_why_and_is_placed_when_it_can(cell) -> None:
    rows.a_machine(cell, "small", capacity=(50, 2**30, 2**30, 0, 0, 0))
    job = rows.a_job(cell, rows.a_tenant())
    master = ticked(cell)
    verdict = PendingVerdict.objects.get(job=job)
    (why,) = verdict.whys
    assert why["ruled_out"][0]["subject"] == "cpu"
    assert why["never"] is True
    rows.a_machine(cell, "large")
    master.tick()
    assert placed(job) == 3
    assert not PendingVerdict.objects.exists()


def passes(cell) -> float:
    return REGISTRY.get_sample_value("borg_pass_seconds_count", {"cell": cell.name, "scheduler": "default"}) or 0.0


def test_a_report_alone_causes_no_pass(cell) -> None:
    machine = rows.a_machine(cell, capacity=(150, 2**30, 2**30, 0, 0, 0))
    job = rows.a_job(cell, rows.a_tenant(), tasks=2)
    master = ticked(cell)
    master.tick()
    running = Task.objects.get(job=job, state="running")
    before = passes(cell)
    with journal.write(cell.id, rows.ME) as entry:
        reported_states.tasks_observe(entry, [reported_states.Observation(running.id, 1, "up", "unknown", up=True)])
    master.tick()
    assert passes(cell) == before
    with journal.write(cell.id, rows.ME) as entry:
        entry.append(events.MachineState(machine_id=machine.id, state="up"))
    master.tick()
    assert passes(cell) == before + 1


def test_production_preempts_batch_and_the_victim_waits(cell) -> None:
    rows.a_machine(cell, capacity=(250, 2**31, 2**31, 0, 0, 0))
    tenant = rows.a_tenant()
    low = rows.a_job(cell, tenant, "low", tasks=2, priority=100, latency_sensitive=False)
    master = ticked(cell)
    assert placed(low) == 2
    high = rows.a_job(cell, tenant, "high", tasks=1, priority=200)
    master.tick()
    master.tick()
    assert (placed(high), placed(low)) == (1, 1)
    receipt = [
        record.event for record in journal.tail(cell.id, after=0) if isinstance(record.event, events.TaskEvicted)
    ]
    assert [(event.cause, event.preemptor) for event in receipt] == [("preemption", (high.id, 0))]


def test_a_lease_has_one_holder_until_it_runs_out(cell) -> None:
    assert lease.take(cell.id, scheduler="default", holder="one", ttl_s=60) == 1
    assert lease.take(cell.id, scheduler="default", holder="two") is None
    assert lease.renew(cell.id, scheduler="default", holder="two") is None
    assert lease.held() == {(cell.id, "default")}
    lease.release(cell.id, scheduler="default", holder="one")
    assert lease.held() == set()
    assert lease.renew(cell.id, scheduler="default", holder="one") is None
    assert lease.take(cell.id, scheduler="default", holder="two", ttl_s=60) == 2


def test_a_master_without_the_lease_does_nothing(cell) -> None:
    rows.a_machine(cell)
    job = rows.a_job(cell, rows.a_tenant())
    lease.take(cell.id, scheduler="default", holder="another", ttl_s=60)
    assert Master(cell.id).run(5.0) is False
    assert placed(job) == 0


def test_a_master_whose_renewal_waited_for_a_standby_asks_again(cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease expires while its renewal commits, and another master takes it before the first one goes on."""
    ttl_s, renew = 0.6, lease.renew

    def waits(*args: int, **fields: object) -> int | None:
        epoch = renew(*args, **fields)  # type: ignore[arg-type]
        time.sleep(1.5 * ttl_s)
        return epoch

    master = Master(cell.id, holder="one", lease_ttl_s=ttl_s)
    assert master._hold_lease()
    time.sleep(ttl_s / 2)
    monkeypatch.setattr(lease, "renew", waits)
    assert master._hold_lease()
    assert lease.take(cell.id, scheduler="default", holder="two", ttl_s=60) == 2
    assert not master._hold_lease()


def _holder(pid: int) -> str:
    """Return the name under which a process of this host would hold the lease of a master."""
    host, _, which = lease.own_holder().split(":")
    return f"{host}:{pid}:{which.partition('-')[0]}-{lease._started(pid)}"


def test_a_master_takes_over_at_once_from_a_process_of_its_host_that_has_ended(cell) -> None:
    rows.a_machine(cell)
    job = rows.a_job(cell, rows.a_tenant())
    with subprocess.Popen(["sleep", "60"]) as other:
        holder = _holder(other.pid)
        assert lease.take(cell.id, scheduler="default", holder=holder, ttl_s=60) == 1
        try:
            assert Master(cell.id).run(0.0) is False, "its holder is alive"
        finally:
            other.kill()
        until = time.monotonic() + 10
        while not lease.is_gone(holder):  # a zombie counts as ended
            assert time.monotonic() < until
            time.sleep(0.01)
        assert Master(cell.id).run(0.0) is True
    assert placed(job) == 3
    assert lease.in_force(cell.id)["default"] == (lease.own_holder(), 2)


@pytest.mark.parametrize("change", ["elsewhere:1:{space}-1", "{host}:1:00000000-1", "one", "", "{host}:x:{space}-1"])
def test_of_a_holder_that_this_host_cannot_see_nobody_knows_whether_it_has_ended(change: str) -> None:
    host, _, which = lease.own_holder().split(":")
    assert not lease.is_gone(change.format(host=host, space=which.partition("-")[0]))
    assert not lease.is_gone(lease.own_holder())


def test_masters_that_load_slowly_take_one_lease_between_them(cell) -> None:
    """Two masters load the state more slowly than a lease lasts. One of them takes the lease, and keeps it."""
    ttl_s = 3.0
    rows.a_machine(cell)
    job = rows.a_job(cell, rows.a_tenant())
    outcomes: list[bool] = []

    def slowly(cell_id: int) -> CellState:
        state = load_state(cell_id)
        time.sleep(1.5 * ttl_s)
        return state

    def work(holder: str) -> None:
        master = Master(cell.id, load=slowly, holder=holder, lease_ttl_s=ttl_s)
        try:
            for _ in range(3):
                outcomes.append(master.run(0.0))
                if not outcomes[-1]:
                    return
                master.state = None
        finally:
            connection.close()

    masters = [threading.Thread(target=work, args=(holder,)) for holder in ("one", "two")]
    for master in masters:
        master.start()
    for master in masters:
        master.join()
    assert sorted(outcomes) == [False, True, True, True]
    taken = [r for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.LeaseTaken)]
    assert len(taken) == 1
    assert placed(job) == 3


def test_a_master_that_lost_its_lease_keeps_its_warm_state(cell) -> None:
    loads: list[int] = []

    def counted(cell_id: int) -> CellState:
        loads.append(cell_id)
        return load_state(cell_id)

    rows.a_machine(cell)
    master = Master(cell.id, load=counted, holder="one", lease_ttl_s=0.5)
    assert master.run(0.0) is True
    time.sleep(0.6)
    assert lease.take(cell.id, scheduler="default", holder="another", ttl_s=60) == 2
    assert master.run(0.0) is False
    job = rows.a_job(cell, rows.a_tenant())
    lease.release(cell.id, scheduler="default", holder="another")
    assert master.run(0.0) is True
    assert placed(job) == 3
    assert len(loads) == 1


def test_a_slice_places_what_arrives_while_it_runs(cell) -> None:
    rows.a_machine(cell)
    tenant = rows.a_tenant()
    # On a busy machine, only the longer slice suffices.
    assert any(placed_within_a_slice(cell, tenant, slice_s) for slice_s in (5.0, 60.0))


def placed_within_a_slice(cell: Cell, tenant: Tenant, slice_s: float) -> bool:
    """Return whether a job that is created while a master works for `slice_s` seconds is placed in this time."""
    outcome: list[bool] = []

    def work() -> None:
        try:
            outcome.append(Master(cell.id).run(slice_s))
        finally:
            connection.close()

    Lease.objects.filter(cell=cell).delete()
    worker = threading.Thread(target=work)
    worker.start()
    while not Lease.objects.filter(cell=cell).exists() and worker.is_alive():
        time.sleep(0.01)
    job = rows.a_job(cell, tenant, f"within-{slice_s:g}")
    wakeups.publish(cell.id, journal.newest(cell.id))
    while placed(job) < 3 and worker.is_alive():
        time.sleep(0.01)
    in_time = worker.is_alive()
    worker.join()
    assert outcome == [True]
    return in_time


def test_two_masters_at_once_are_safe(cell) -> None:
    """Two masters place 60 tasks at once, each as if it held the lease. No incarnation is placed twice."""
    for number in range(6):
        rows.a_machine(cell, f"m{number}", capacity=(1000, 2**32, 2**32, 0, 0, 0), rack=f"r{number % 2}")
    tenant = rows.a_tenant()
    jobs: list[Job] = []
    failures: list[Exception] = []

    def work() -> None:
        master = Master(cell.id)
        try:
            for _ in range(30):
                master.tick()
                time.sleep(0.005)
        except Exception as error:  # noqa: BLE001 - a thread's failure must reach the test
            failures.append(error)
        finally:
            connection.close()

    masters = [threading.Thread(target=work) for _ in range(2)]
    for master in masters:
        master.start()
    for number in range(5):
        jobs.append(rows.a_job(cell, tenant, f"job{number}", tasks=12, priority=100 + 50 * number))
    for master in masters:
        master.join()
    assert failures == []
    assert sum(placed(job) for job in jobs) == 60
    placements = [
        (record.event.job_id, record.event.index, record.event.incarnation)
        for record in journal.tail(cell.id, after=0)
        if isinstance(record.event, events.TaskPlaced)
    ]
    assert len(placements) == len(set(placements)), "an incarnation was placed twice"
    assert {task_id(job, index) for job, index, _ in placements} == set(Task.objects.values_list("id", flat=True))


def test_metrics_show_rows_and_what_processes_counted(cell) -> None:
    rows.a_machine(cell)
    job = rows.a_job(cell, rows.a_tenant())
    ticked(cell)
    assert placed(job) == 3
    text = Client().get("/metrics").content.decode()
    assert 'borg_tasks{cell="cc",state="running"} 3.0' in text
    assert 'borg_machines{cell="cc",state="up"} 1.0' in text
