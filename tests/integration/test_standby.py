"""Tests of standby masters (§3.1): they follow the cell without the lease, and take over without Redis and Celery."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.utils import timezone

from scheduling.admin import passes
from scheduling.cells.cells import cell_set
from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.master import lease, process, standbys
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.master.process import MasterProcess
from scheduling.master.schedulers import BATCH, DEFAULT, SERVICE
from scheduling.master.snapshot import load_state
from scheduling.models import Cell, Job, Lease, PendingVerdict, Standby, Task
from scheduling.usage import cell_view
from tests.integration import master_processes, rows

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_S = 120.0


@pytest.fixture
def cell() -> Cell:
    return rows.a_cell()


@pytest.fixture(autouse=True)
def _sound(cell):
    yield
    assert [problem for problem in validate(cell.id) if "is charged" not in problem] == []


def placed(job: Job) -> int:
    return Task.objects.filter(job=job, state="running").count()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.02)


@contextmanager
def serving(name: str = "cc") -> Iterator[MasterProcess]:
    """Run the loop of a master's process in a thread during the `with` block."""
    served = MasterProcess(name)

    def work() -> None:
        try:
            served.run()
        finally:
            connection.close()

    thread = threading.Thread(target=work, name=f"master {id(served)}")
    thread.start()
    try:
        yield served
    finally:
        served.stopping.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_standby_follows_the_journal_and_takes_over_with_the_state_that_it_has(cell) -> None:
    loads: list[int] = []

    def counted(cell_id: int) -> CellState:
        loads.append(cell_id)
        return load_state(cell_id)

    rows.a_machine(cell)
    lease.take(cell.id, scheduler="default", holder="another", ttl_s=60)
    standby = Master(cell.id, load=counted)
    standby.prepare()
    job = rows.a_job(cell, rows.a_tenant())
    standby.stand_by(0.0)
    assert standby.state is not None
    assert (standby.state.pending, placed(job)) == (3, 0), "it has read the job and does not place it"
    lease.release(cell.id, scheduler="default", holder="another")
    standby.stand_by(WAIT_S)
    assert standby.run(0.0) is True
    assert (placed(job), len(loads)) == (3, 1)


def test_an_sre_sees_a_standby_until_it_takes_over(cell) -> None:
    lease.take(cell.id, scheduler="default", holder="another", ttl_s=60)
    standby = Master(cell.id, holder="host-b:7:0-1")
    standby.prepare()
    assert standbys.present() == {}
    standby.stand_by(0.0)
    rows.a_job(cell, rows.a_tenant())
    (seen,) = standbys.present()[cell.id, "default"]
    assert (seen.holder, seen.behind) == ("host-b:7:0-1", 1)
    (shown,) = passes.of_cell(cell)["schedulers"]
    assert shown["standbys"] == [seen]
    assert 'borg_master_standbys{cell="cc",scheduler="default"} 1.0' in Client().get("/metrics").content.decode()
    lease.release(cell.id, scheduler="default", holder="another")
    assert standby.run(0.0) is True
    assert standbys.present() == {}
    assert 'borg_master_standbys{cell="cc",scheduler="default"} 0.0' in Client().get("/metrics").content.decode()


def test_a_standby_that_has_ended_is_forgotten(cell) -> None:
    for holder in ("killed", "stopped", "living"):
        standbys.note(cell.id, scheduler="default", holder=holder, revision=0)
    standbys.forget(cell.id, scheduler="default", holder="stopped")
    Standby.objects.filter(holder="killed").update(seen_at=timezone.now() - dt.timedelta(minutes=1))
    assert [one.holder for one in standbys.present()[cell.id, "default"]] == ["living"]
    standbys.note(cell.id, scheduler="default", holder="living", revision=0)
    assert Standby.objects.get().holder == "living"


def test_a_process_that_is_stopped_releases_its_lease(cell) -> None:
    with serving():
        wait_for(lambda: lease.held() == {(cell.id, "default")})
    assert lease.held() == set()


def test_a_standby_takes_over_from_a_killed_process_without_redis(cell, tmp_path) -> None:
    """Two processes run, and neither of them reaches Redis. The one that works is killed, and the other one places the
    next job, with the next epoch of the lease.
    """
    rows.a_machine(cell)
    tenant = rows.a_tenant()
    away = {"BORG_REDIS_URL": f"unix://{tmp_path}/none.sock"}
    with master_processes.running(tmp_path, "cc", "cc", **away) as both:
        first_job = rows.a_job(cell, tenant, "first")
        wait_for(lambda: placed(first_job) == 3)
        holder, epoch = lease.in_force(cell.id)["default"]
        (working,) = [one for one in both if holder.split(":")[1] == str(one.pid)]
        (standby,) = [one for one in both if one is not working]
        wait_for(lambda: (tmp_path / "cc.log").read_text().count("the master loaded the state of the cell") >= 2)
        working.send_signal(signal.SIGSTOP)  # it no longer renews its lease
        Lease.objects.update(expires_at=timezone.now() + dt.timedelta(hours=1))
        working.send_signal(signal.SIGKILL)
        working.wait()
        second_job = rows.a_job(cell, tenant, "second")
        wait_for(lambda: placed(second_job) == 3)
        holder, later = lease.in_force(cell.id)["default"]
        assert (holder.split(":")[1], later) == (str(standby.pid), epoch + 1)


def test_leases_of_ended_processes_of_this_host_are_released(cell) -> None:
    """So a standby on another host need not wait until the lease expires."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        host, _, which = lease.own_holder().split(":")
        ended = f"{host}:{other.pid}:{which.partition('-')[0]}-{lease._started(other.pid)}"
        lease.take(cell.id, scheduler="default", holder=ended, ttl_s=60)
        assert lease.release_ended(cell.name) == [], "the process is alive"
        other.kill()
    assert lease.release_ended("another") == []
    assert lease.release_ended(cell.name) == ["default"]
    assert lease.held() == set()
    lease.take(cell.id, scheduler="default", holder=ended, ttl_s=60)
    command = [sys.executable, "-m", "scheduling.master", f"{cell.name}.batch", "--release"]
    subprocess.run(command, env=master_processes.environment(), check=True)
    assert lease.held() == set(), "units run the command after a master has ended"


def test_a_lease_of_another_host_is_not_released(cell) -> None:
    lease.take(cell.id, scheduler="default", holder="elsewhere:1:0-1", ttl_s=60)
    assert lease.release_ended(cell.name) == []
    assert lease.held() == {(cell.id, "default")}


def test_a_process_follows_the_setting_of_schedulers(cell, monkeypatch) -> None:
    """The process of the cell runs the scheduler for all jobs or the one for services. The batch process waits until
    the setting lists its scheduler.
    """
    monkeypatch.setattr(process, "PAUSE_S", 0.02)
    with serving(), serving("cc.batch") as batch:
        wait_for(lambda: lease.held() == {(cell.id, DEFAULT.name)})
        wait_for(lambda: "to list this scheduler" in batch._waits_for)
        for setting, names in (("by-workload", {SERVICE.name, BATCH.name}), ("one", {DEFAULT.name})):
            cell_set(principal=rows.ME, cell=cell, settings={"schedulers": setting})
            wait_for(lambda names=names: lease.held() == {(cell.id, name) for name in names})


def test_a_process_waits_for_its_cell(cell, monkeypatch) -> None:
    monkeypatch.setattr(process, "PAUSE_S", 0.02)
    with serving("later") as waiting:
        wait_for(lambda: waiting._waits_for == "a cell named later")
        later = rows.a_cell("later")
        wait_for(lambda: (later.id, "default") in lease.held())


def test_a_master_that_fails_loads_its_state_again(cell, monkeypatch) -> None:
    monkeypatch.setattr(process, "PAUSE_S", 0.02)
    rows.a_machine(cell)
    failures = iter([True])
    working = Master.tick

    def fail_once(self: Master) -> bool:
        if next(failures, False):
            raise RuntimeError("a planted error")
        return working(self)

    monkeypatch.setattr(Master, "tick", fail_once)
    job = rows.a_job(cell, rows.a_tenant())
    with serving():
        wait_for(lambda: placed(job) == 3)
    assert next(failures, None) is None


def test_a_standby_takes_over_from_a_master_that_only_fails(cell, monkeypatch) -> None:
    monkeypatch.setattr(process, "PAUSE_S", 0.02)
    rows.a_machine(cell)
    broken = threading.Event()
    working = Master.tick

    def fail(self: Master) -> bool:
        if broken.is_set() and threading.current_thread() is ill:
            raise RuntimeError("a planted error")
        return working(self)

    monkeypatch.setattr(Master, "tick", fail)
    with serving() as first:
        (ill,) = (thread for thread in threading.enumerate() if thread.name == f"master {id(first)}")
        wait_for(lambda: lease.held() == {(cell.id, "default")})
        other = Master(cell.id, holder="the standby", lease_ttl_s=600.0)
        other.prepare()
        job = rows.a_job(cell, rows.a_tenant())
        broken.set()

        def takes_over() -> bool:
            """Stand by and take the lease. On a busy host, the master that fails may take it again a few times."""
            other.stand_by(WAIT_S)
            return other.run(0.0)

        wait_for(takes_over)
        assert placed(job) == 3


def test_a_standby_of_a_scheduler_that_is_no_longer_listed_takes_no_lease(cell, monkeypatch) -> None:
    monkeypatch.setattr(process, "PAUSE_S", 0.02)
    lease.take(cell.id, scheduler="default", holder="another", ttl_s=600)
    with serving() as standby:
        wait_for(lambda: standby._master is not None and standby._master.state is not None)
        cell_set(principal=rows.ME, cell=cell, settings={"schedulers": "by-workload"})
        lease.release(cell.id, scheduler="default", holder="another")
        wait_for(lambda: (cell.id, SERVICE.name) in lease.held())
    taken = [r.event for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.LeaseTaken)]
    assert [(event.scheduler, event.holder == "another") for event in taken] == [("default", True), ("service", False)]


def test_a_master_that_takes_its_lease_again_writes_its_view_and_verdicts_again(cell) -> None:
    rows.a_machine(cell, capacity=(50, 2**30, 2**30, 0, 0, 0))
    job = rows.a_job(cell, rows.a_tenant())
    first, second = Master(cell.id, holder="first"), Master(cell.id, holder="second")
    for master in (first, second, first):
        assert master.run(0.0) is True
        assert PendingVerdict.objects.filter(job=job).exists(), master.holder
        assert cell_view.read(cell.id, revision=journal.newest(cell.id)) is not None, master.holder
        lease.release(cell.id, scheduler="default", holder=master.holder)
        PendingVerdict.objects.all().delete()  # as the next master does when it finds other reasons
        master.stand_by(0.0)


def test_a_process_that_this_one_may_not_see_is_not_gone(monkeypatch) -> None:
    """`/proc` hides the processes of other users from a unit with ProtectProc=invisible."""
    host, _, which = lease.own_holder().split(":")
    init = f"{host}:1:{which.partition('-')[0]}-1"
    assert lease.is_gone(init), "process 1 began at another time"
    monkeypatch.setattr(lease, "_stat", lambda pid: (_ for _ in ()).throw(FileNotFoundError))
    assert not lease.is_gone(init)


def test_sigterm_ends_the_process_and_releases_the_lease(cell, tmp_path) -> None:
    with master_processes.running(tmp_path, "cc") as (master,):
        wait_for(lambda: lease.held() == {(cell.id, "default")})
        master.send_signal(signal.SIGTERM)
        assert master.wait(WAIT_S) == 0
    assert lease.held() == set()


def test_a_worker_of_an_old_unit_becomes_the_process(cell, tmp_path) -> None:
    """Unit files of earlier releases start a Celery worker for the queue of a cell."""
    rows.a_machine(cell)
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings.production",
        "BORG_DATABASE_URL": master_processes.database_url(),
        "BORG_REDIS_URL": settings.BORG_REDIS_URL,
        "BORG_SECRET_KEY": "of-the-tests-" + "x" * 50,
    }
    command = [sys.executable, "-m", "celery", "-A", "portal.celery", "worker", "--pool", "solo", "--queues", "cell.cc"]
    with (tmp_path / "worker.log").open("wb") as output:
        worker = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        job = rows.a_job(cell, rows.a_tenant())
        wait_for(lambda: placed(job) == 3)
        assert lease.in_force(cell.id)["default"][0].split(":")[1] == str(worker.pid)
    finally:
        worker.kill()
        worker.wait()
