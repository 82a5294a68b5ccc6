"""Tests of several schedulers of one cell at once (§3.4): each places its own jobs, and one does the maintenance."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from django.db import connection
from prometheus_client import REGISTRY

from quota.vocabulary.errors import Rejected
from scheduling.cells.cells import cell_set
from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.master import lease, schedulers
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.master.schedulers import BATCH, DEFAULT, SERVICE, Scheduler
from scheduling.models import Cell, Job, Lease, PendingVerdict, Task
from scheduling.policy import cell_settings
from tests.integration import master_processes, rows, world
from tests.integration.test_races import Threads, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_S = 40.0


@pytest.fixture
def cell() -> Cell:
    cell = rows.a_cell()
    return cell_set(principal=rows.ME, cell=cell, settings={"schedulers": "by-workload"})


@pytest.fixture(autouse=True)
def _sound(cell):
    yield
    assert [problem for problem in validate(cell.id) if "is charged" not in problem] == []


@pytest.fixture
def tenant(cell):
    return rows.a_tenant()


def batch(cell: Cell, tenant, name: str = "count", **asks: object) -> Job:
    return rows.a_job(cell, tenant, name, priority=110, latency_sensitive=False, **asks)


def placed(*jobs: Job) -> int:
    return Task.objects.filter(job__in=jobs, state="running").count()


def conflicts(cell: Cell) -> float:
    return sum(
        REGISTRY.get_sample_value("borg_conflicts_total", {"cell": cell.name, "scheduler": one.name}) or 0.0
        for one in (SERVICE, BATCH)
    )


def placements(job: Job) -> list[int]:
    """Return the revision of each placement of the job, in order."""
    return [
        record.revision
        for record in journal.tail(job.cell_id, after=0)
        if isinstance(record.event, events.TaskPlaced) and record.event.job_id == job.id
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.02)


# --- each scheduler places its own jobs


def test_each_places_its_own_jobs(cell, tenant) -> None:
    rows.a_machine(cell)
    web, count = rows.a_job(cell, tenant, "web"), batch(cell, tenant)
    Master(cell.id, BATCH).tick()
    assert (placed(web), placed(count)) == (0, 3)
    Master(cell.id, SERVICE).tick()
    assert (placed(web), placed(count)) == (3, 3)


def test_one_does_not_wipe_out_why_the_other_s_tasks_are_pending(cell, tenant) -> None:
    machine = rows.a_machine(cell, capacity=(50, 2**30, 2**30, 0, 0, 0))
    web, count = rows.a_job(cell, tenant, "web"), batch(cell, tenant)
    service, background = Master(cell.id, SERVICE), Master(cell.id, BATCH)
    service.tick()
    background.tick()
    assert set(PendingVerdict.objects.values_list("job_id", flat=True)) == {web.id, count.id}
    rows.machine_set(machine, capacity={"cpu": 450, "ram": 2**34, "disk": 2**34})
    service.tick()
    assert set(PendingVerdict.objects.values_list("job_id", flat=True)) == {count.id}
    assert placed(web) == 3
    background.tick()
    assert placed(count) == 1, "an own verdict is replaced"


def test_the_first_alone_keeps_house(cell, tenant) -> None:
    machine = rows.a_machine(cell)
    count = batch(cell, tenant)
    background = Master(cell.id, BATCH)
    background.tick()
    # The other machine is full. If all machines vanished together, no task would be moved.
    rows.a_machine(cell, "m2", capacity=[1, 1, 1, 0, 0, 0])
    rows.machine_down(machine)
    background._kept = 0.0
    background.tick()
    assert placed(count) == 3, "it moved tasks that are not its business to move"
    Master(cell.id, SERVICE).tick()
    assert placed(count) == 0


# --- the setting of schedulers


def test_what_is_wanted_and_held_by_nobody_is_missing(cell) -> None:
    assert schedulers.unheld() == [("cc", SERVICE), ("cc", BATCH)]
    lease.take(cell.id, scheduler="service", holder="somebody", ttl_s=60)
    assert schedulers.unheld() == [("cc", BATCH)]


def test_a_cell_whose_settings_are_broken_stops_no_other(cell) -> None:
    Cell.objects.create(name="broken", settings={"schedulers": "many"})
    assert schedulers.unheld() == [("cc", SERVICE), ("cc", BATCH)]


def test_the_setting_takes_what_there_is() -> None:
    with pytest.raises(Rejected, match="schedulers must be one or by-workload"):
        cell_settings.load({"schedulers": "three"})


@pytest.mark.parametrize(
    ("running", "setting", "then"), [(DEFAULT, "by-workload", [SERVICE, BATCH]), (BATCH, "one", [DEFAULT])]
)
def test_a_scheduler_that_is_no_longer_wanted_lets_go(cell, running: Scheduler, setting: str, then) -> None:
    cell_set(principal=rows.ME, cell=cell, settings={"schedulers": "one" if running is DEFAULT else "by-workload"})
    ended: list[bool] = []

    def work() -> None:
        try:
            ended.append(Master(cell.id, running).run(WAIT_S))
        finally:
            connection.close()

    worker = threading.Thread(target=work)
    worker.start()
    wait_for(lambda: (cell.id, running.name) in lease.held())
    cell_set(principal=rows.ME, cell=cell, settings={"schedulers": setting})
    worker.join(WAIT_S)
    assert ended == [False]
    assert lease.held() == set(), "the next one must not wait for the lease to run out"
    assert [scheduler for _, scheduler in schedulers.unheld()] == then


# --- schedulers at the same time


def blocked_together(cell: Cell, masters: Sequence[Master], while_they_wait: Callable[[], object]) -> None:
    """Make all masters decide on one revision and wait for the cell's lock. Call `while_they_wait`, then unlock."""
    threads = Threads()
    with journal.write(cell.id, rows.ME) as entry:
        for master in masters:
            threads.start(master.tick)
        wait_until_blocked(len(masters))
        while_they_wait()
        entry.append(events.JobRejected(tenant="x", name="y", code="test", detail="", figures={}))
    threads.join()


def test_a_conflict_is_counted_and_the_loser_looks_again(cell, tenant) -> None:
    """Two schedulers decide on the same free capacity. The second commit fails as a conflict. The next one succeeds."""
    rows.a_machine(cell, capacity=(1000, 2**32, 2**32, 0, 0, 0))
    web = rows.a_job(cell, tenant, "web", tasks=5)
    count = batch(cell, tenant, tasks=5)
    before = conflicts(cell)
    both = [Master(cell.id, SERVICE), Master(cell.id, BATCH)]
    blocked_together(cell, both, lambda: None)
    assert placed(web, count) == 5, "the first to commit gets what it decided"
    assert conflicts(cell) == before + 5
    for master in both:
        master.tick()
    assert placed(web, count) == 10


def test_a_plan_that_lost_everything_wins_the_second_time(cell, tenant) -> None:
    """After a plan of which nothing could be applied, a master makes its next pass under the lock of the cell."""
    machine = rows.a_machine(cell)
    other = batch(cell, tenant, tasks=2)
    web = rows.a_job(cell, tenant, "web")
    service = Master(cell.id, SERVICE)
    blocked_together(cell, [service], lambda: world.place(other, machine, 0))
    assert (placed(web), placed(other)) == (0, 1)
    blocked_together(cell, [service], lambda: world.place(other, machine, 1))
    assert (placed(web), placed(other)) == (3, 2)


def test_both_work_at_once_on_a_crowded_cell(cell, tenant) -> None:
    """Two schedulers place tasks at once on machines that are almost full. No incarnation is placed twice."""
    for number in range(6):
        rows.a_machine(cell, f"m{number}", capacity=(1000, 2**32, 2**32, 0, 0, 0), rack=f"r{number % 2}")
    jobs: list[Job] = []
    submitted = threading.Event()
    threads = Threads()

    def work(scheduler: Scheduler) -> None:
        master = Master(cell.id, scheduler)
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            done = submitted.is_set()
            if not master.tick() and done and placed(*jobs) == 56:
                return

    for scheduler in (SERVICE, BATCH):
        threads.start(lambda scheduler=scheduler: work(scheduler))
    for number in range(7):
        jobs.append(rows.a_job(cell, tenant, f"web{number}", tasks=4))
        jobs.append(batch(cell, tenant, f"count{number}", tasks=4))
    submitted.set()
    threads.join()
    assert placed(*jobs) == 56
    made = [
        (record.event.job_id, record.event.index, record.event.incarnation)
        for record in journal.tail(cell.id, after=0)
        if isinstance(record.event, events.TaskPlaced)
    ]
    assert len(made) == len(set(made)), "an incarnation was placed twice"


@pytest.fixture
def processes(cell, tmp_path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield real processes, one for each scheduler of the cell."""
    with master_processes.running(tmp_path, "cc", "cc.batch") as masters:
        yield masters


def held(cell: Cell, *wanted: Scheduler) -> bool:
    return lease.held() == {(cell.id, scheduler.name) for scheduler in wanted}


def test_a_large_batch_job_does_not_delay_a_service(cell, tenant, processes) -> None:
    """A service that is submitted while 20,000 batch tasks are placed is placed before the last of them."""
    for number in range(40):
        rows.a_machine(cell, f"m{number}", capacity=(64_000, 2**40, 2**42, 0, 0, 0), rack=f"r{number}")
    wait_for(lambda: held(cell, SERVICE, BATCH))
    holders = dict(Lease.objects.values_list("scheduler", "holder"))
    assert {holder.split(":")[1] for holder in holders.values()} == {str(one.pid) for one in processes}
    large = batch(cell, tenant, "large", tasks=20_000)
    wait_for(lambda: placed(large) > 0)
    web = rows.a_job(cell, tenant, "web", tasks=3)
    wait_for(lambda: placed(web) == 3 and placed(large) == 20_000)
    assert max(placements(web)) < max(placements(large)), "it waited for the whole batch job"


def test_the_setting_is_changed_while_they_run(cell, tenant, processes) -> None:
    rows.a_machine(cell)
    wait_for(lambda: held(cell, SERVICE, BATCH))
    cell_set(principal=rows.ME, cell=cell, settings={"schedulers": "one"})
    count = batch(cell, tenant)
    wait_for(lambda: held(cell, DEFAULT))
    wait_for(lambda: placed(count) == 3)
    cell_set(principal=rows.ME, cell=cell, settings={"schedulers": "by-workload"})
    web, later = rows.a_job(cell, tenant, "web"), batch(cell, tenant, "later")
    wait_for(lambda: held(cell, SERVICE, BATCH))
    wait_for(lambda: placed(web, later) == 6)


def test_a_master_that_was_killed_comes_back_by_itself(cell, tenant, tmp_path) -> None:
    """After a master was killed, a new one takes its lease over at once, and does not wait until the lease expires."""
    rows.a_machine(cell)
    cell_set(principal=rows.ME, cell=cell, settings={"schedulers": "one"})
    for number in range(2):
        job = rows.a_job(cell, tenant, f"web{number}", tasks=3)
        with master_processes.running(tmp_path, "cc") as (worker,):
            wait_for(lambda job=job: placed(job) == 3)
            holder, epoch = lease.in_force(cell.id)["default"]
            assert (holder.split(":")[1], epoch) == (str(worker.pid), number + 1)
