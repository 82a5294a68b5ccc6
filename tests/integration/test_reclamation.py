"""Tests of resource reclamation (§5.5): usage changes reservations, and the capacity that this frees is used by other
tasks.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import redis.asyncio
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from prometheus_client import REGISTRY

from borglet.messages import Phase, Report, TaskKey, TaskReport, Usage, decode_to_shard, encode
from quota.vocabulary.bands import DEFAULT_BANDS
from quota.vocabulary.errors import Rejected
from scheduling.core.reclamation.cycle import EVERY_S
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal, wakeups
from scheduling.link.views.last_report import merge_report
from scheduling.link.views.report_changes import ExpectedTask, View
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.master.reclamation import Reclaimer, jobs_without_reclamation
from scheduling.master.snapshot import load_state
from scheduling.models import Cell, Job, JobSpec, Machine, Task
from scheduling.policy import cell_settings
from scheduling.policy.cell_settings import CellSettings
from scheduling.usage import live_usage, utilisation
from tests.integration import portal_world, rows

pytestmark = pytest.mark.django_db(transaction=True)
GIB = 2**30
LIMIT = (1000, GIB, GIB, 0, 0, 1)


@pytest.fixture
def cell():
    cell = rows.a_cell()
    yield cell
    wakeups.client().delete(f"borg:usage:{cell.id}", f"borg:reclaim:{cell.id}")
    assert [problem for problem in validate(cell.id) if "is charged" not in problem] == []


class Cycle:
    """A master, the usage of the tasks of its cell, and a reclaimer whose clock the test sets."""

    def __init__(self, cell: Cell, **asked: object) -> None:
        self.cell, self.master, self.clock = cell, Master(cell.id), 0.0
        self.settings = CellSettings(**asked)
        self.reclaimer = Reclaimer(cell.id, cell.name)
        self.used: dict[int, Usage] = {}  # by task id

    def use(self, job: Job, *, index: int = 0, cpu: int = 0, ram: int = 0, disk: int = 0) -> None:
        self.used[task_id(job.id, index)] = Usage(cpu, ram, disk, processes=1)

    def report(self) -> None:
        """Store the usage of all tasks in Redis, as link shards do."""
        seconds, micros = wakeups.client().time()
        machines: dict[int, bytes] = {}
        for machine in Machine.objects.filter(cell=self.cell):
            here = Task.objects.filter(machine=machine).select_related("job")
            keys = {task.id: TaskKey(task.job.uid.hex, task.index, task.incarnation) for task in here}
            view = View("", "", {key: ExpectedTask(identity) for identity, key in keys.items()})
            reported = [
                TaskReport(key, "", Phase.UP, usage=self.used[identity])
                for identity, key in keys.items()
                if identity in self.used
            ]
            heard = merge_report(None, decode_to_shard(encode(Report(1, 1, "", "", 0, reported))))
            heard.assign(view, machine.id)
            machines |= live_usage.pack([(heard.measured(machine.id), seconds + micros / 1e6)])

        async def send() -> None:
            client = redis.asyncio.Redis.from_url(settings.BORG_REDIS_URL)
            await live_usage.store(client, {self.cell.id: machines})
            await client.aclose()

        asyncio.run(send())

    def turn(self, *, seconds: float = 1.0) -> int:
        self.master.tick()
        self.clock += seconds
        assert self.master.state is not None
        written = self.reclaimer.turn(self.master.state, DEFAULT_BANDS, self.settings, now=self.clock)
        self.master.tick()
        return written

    def after(self, seconds: float) -> None:
        self.report()
        for _ in range(round(seconds / 25)):  # samples are valid for 30 s of the real clock
            self.turn(seconds=25)


def running(cell: Cell, name: str = "web", *, priority: int = 200, limit=LIMIT, tasks: int = 1, **spec) -> Job:
    job = rows.a_job(cell, rows.a_tenant(), name, tasks=tasks, priority=priority, limit=limit)
    for field, value in spec.items():
        row = JobSpec.objects.get(job=job)
        row.spec[field] = value
        row.save()
    return job


def reservation(job: Job, index: int = 0) -> list[int]:
    return Task.objects.get(job=job, index=index).reservation


def test_a_standby_observes_usage_so_that_reservations_fall_at_once_after_a_takeover(cell) -> None:
    rows.a_machine(cell, capacity=(4000, 8 * GIB, 8 * GIB, 0, 0, 10))
    cycle, standby = Cycle(cell), Reclaimer(cell.id, cell.name)
    job = running(cell)
    cycle.turn()
    cycle.use(job, cpu=200, ram=256 * 2**20, disk=2**20)
    cycle.report()
    assert cycle.master.state is not None
    fresh = Reclaimer(cell.id, cell.name)
    for second in range(0, 3001, 25):
        standby.observe(cycle.master.state, cycle.settings, now=float(second))
    fresh.turn(cycle.master.state, DEFAULT_BANDS, cycle.settings, now=3025.0)
    assert reservation(job) == list(LIMIT), "a standby changes nothing, and a new master observes first"
    standby.turn(cycle.master.state, DEFAULT_BANDS, cycle.settings, now=3025.0)
    assert 250 <= reservation(job)[0] <= 310


def test_reservations_reach_rows_journal_and_warm_state(cell) -> None:
    rows.a_machine(cell, capacity=(4000, 8 * GIB, 8 * GIB, 0, 0, 10))
    cycle = Cycle(cell)
    job = running(cell)
    cycle.turn()
    cycle.use(job, cpu=200, ram=256 * 2**20, disk=2**20)
    cycle.after(300)
    assert reservation(job) == list(LIMIT)
    cycle.after(3000)
    cpu, ram, disk, *rest = reservation(job)
    assert 250 <= cpu <= 310
    assert 320 * 2**20 <= ram <= 380 * 2**20
    assert 16 * 2**20 <= disk <= 80 * 2**20
    assert rest == [0, 0, 1]
    told = [r for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.ReservationsSet)]
    assert told[-1].event.reservations == (tuple(reservation(job)),)
    assert told[-1].actor == "system:reclamation"
    assert cycle.master.state is not None
    assert load_state(cell.id).diff(cycle.master.state) == []
    cycle.use(job, cpu=200, ram=900 * 2**20)
    cycle.report()
    cycle.turn(seconds=EVERY_S)
    assert reservation(job)[1] == GIB


def test_non_prod_work_is_placed_into_what_is_reclaimed_and_prod_never(cell) -> None:
    """Prod tasks use less than their limits. Batch tasks are placed into the rest, but prod tasks are not (§5.5)."""
    rows.a_machine(cell, capacity=(4000, 4 * GIB, 100 * GIB, 0, 0, 10))
    cycle = Cycle(cell)
    prod = running(cell, "prod", tasks=4)
    cycle.turn()
    batch = running(cell, "batch", priority=101, tasks=2)
    late = running(cell, "late", tasks=1)
    cycle.turn()
    assert not Task.objects.filter(job__in=[batch, late], state="running").exists()
    for index in range(4):
        cycle.use(prod, index=index, cpu=100, ram=100 * 2**20)
    cycle.after(3000)
    assert Task.objects.filter(job=batch, state="running").count() == 2
    assert not Task.objects.filter(job=late, state="running").exists()
    assert Task.objects.filter(job=prod, state="running").count() == 4


def test_a_job_with_the_capability_keeps_its_limit(cell) -> None:
    rows.a_machine(cell)
    cycle = Cycle(cell)
    job, careful = running(cell), running(cell, "careful", reclamation=False)
    assert jobs_without_reclamation(cell.id) == [careful.id]
    cycle.turn()
    for each in (job, careful):
        cycle.use(each, cpu=1)
    cycle.after(2000)
    assert reservation(careful) == list(LIMIT)
    assert reservation(job)[0] < 500


def test_off_gives_everything_back(cell) -> None:
    rows.a_machine(cell)
    cycle = Cycle(cell)
    job = running(cell)
    cycle.turn()
    cycle.use(job, cpu=1)
    cycle.after(2000)
    assert reservation(job)[0] < 500
    cycle.settings = CellSettings(reclamation="off")
    cycle.turn(seconds=EVERY_S)
    assert reservation(job) == list(LIMIT)


def test_stale_usage_is_ignored(cell) -> None:
    rows.a_machine(cell)
    cycle = Cycle(cell)
    job = running(cell)
    cycle.turn()
    cycle.use(job, cpu=1)
    cycle.after(500)
    held = reservation(job)
    key = f"borg:usage:{cell.id}"
    for field, value in wakeups.client().hgetall(key).items():
        aged = np.frombuffer(value, dtype=live_usage.SAMPLE).copy()
        aged["at"] -= 60
        wakeups.client().hset(key, field, aged.tobytes())
    for _ in range(20):
        assert cycle.turn(seconds=25) == 0
    assert reservation(job) == held
    figures = utilisation.figures_of([cell.id])[cell.id]
    assert (figures.running, figures.measured) == (1, 0)
    for field, value in wakeups.client().hgetall(key).items():
        aged = np.frombuffer(value, dtype=live_usage.SAMPLE).copy()
        aged["at"] -= live_usage.FORGET_S
        wakeups.client().hset(key, field, aged.tobytes())
    cycle.turn(seconds=EVERY_S)
    assert wakeups.client().hlen(key) == 0


def test_an_eviction_in_between_wins(cell) -> None:
    rows.a_machine(cell)
    cycle = Cycle(cell)
    job = running(cell)
    cycle.turn()
    cycle.use(job, cpu=1)
    cycle.after(300)
    state = cycle.master.state
    assert state is not None
    Task.objects.filter(job=job).update(incarnation=2)  # placed again, which is not yet in the warm state
    cycle.report()
    revision = journal.newest(cell.id)
    for _ in range(40):
        cycle.clock += EVERY_S
        assert cycle.reclaimer.turn(state, DEFAULT_BANDS, cycle.settings, now=cycle.clock) == 0
    assert journal.newest(cell.id) == revision
    Task.objects.filter(job=job).update(incarnation=1)


def test_the_number_of_queries_does_not_grow_with_the_tasks(cell) -> None:
    rows.a_machine(cell)
    counts = []
    for name, tasks in (("few", 2), ("many", 60)):
        cycle = Cycle(cell)
        job = running(cell, name, tasks=tasks)
        cycle.turn()
        for index in range(tasks):
            cycle.use(job, index=index, cpu=1)
        cycle.after(300)
        state = cycle.master.state
        assert state is not None
        for _ in range(20):
            cycle.clock += 25
            with CaptureQueriesContext(connection) as queries:
                written = cycle.reclaimer.turn(state, DEFAULT_BANDS, cycle.settings, now=cycle.clock)
            if written:
                break
        assert written == tasks
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_a_machine_short_of_ram_evicts_over_limit_tasks_then_non_prod(cell) -> None:
    rows.a_machine(cell, capacity=(40_000, 4 * GIB, 100 * GIB, 0, 0, 10))
    cycle = Cycle(cell)
    prod, greedy = running(cell, "prod"), running(cell, "greedy")
    batch, free = running(cell, "batch", priority=101), running(cell, "free", priority=0)
    cycle.turn()
    assert Task.objects.filter(state="running").count() == 4
    cycle.use(prod, ram=GIB)
    cycle.use(greedy, ram=int(1.5 * GIB))
    cycle.use(batch, ram=GIB)
    cycle.use(free, ram=GIB)
    cycle.report()
    cycle.turn(seconds=EVERY_S)
    left = [r.event for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.TaskEvicted)]
    assert [(e.job_id, e.cause) for e in left] == [(greedy.id, "out-of-resources")]
    assert "m1 is short of ram: its tasks use 4.5 GiB where 3.88 GiB is the most" in left[0].detail
    assert "this one uses 1.5 GiB, over its limit of 1 GiB" in left[0].detail
    cycle.use(prod, ram=2 * GIB - 1)
    cycle.use(batch, ram=int(0.99 * GIB))
    cycle.report()
    cycle.turn(seconds=EVERY_S)
    left = [r.event for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.TaskEvicted)]
    assert [e.job_id for e in left] == [greedy.id, prod.id]  # greedy is over its limit; priority does not matter
    assert utilisation.figures_of([cell.id])[cell.id].short == 1


def test_what_a_task_sent_away_still_uses_costs_nobody_else_its_place(cell) -> None:
    rows.a_machine(cell, capacity=(40_000, 2 * GIB, 100 * GIB, 0, 0, 10))
    cycle = Cycle(cell)
    batch, free = running(cell, "batch", priority=101), running(cell, "free", priority=0)
    cycle.turn()
    cycle.use(batch, ram=GIB)
    cycle.use(free, ram=GIB)
    cycle.report()
    for _ in range(4):  # the Borglet still reports both tasks
        cycle.turn(seconds=EVERY_S)
    left = [r.event for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.TaskEvicted)]
    assert [e.job_id for e in left] == [free.id]


def test_a_master_does_it_by_itself_and_metrics_tell(cell, client) -> None:
    rows.a_machine(cell)
    running(cell)
    Master(cell.id).tick()
    figures = utilisation.figures_of([cell.id])[cell.id]
    assert (figures.setting, figures.running, figures.measured) == ("medium", 1, 0)
    labels = {"cell": cell.name, "resource": "cpu", "what": "capacity"}
    assert f'borg_cell_resources{{cell="{cell.name}",resource="cpu",what="capacity"}}' in (
        client.get("/metrics").content.decode()
    ) or REGISTRY.get_sample_value("borg_cell_resources", labels)


def test_cpu_denied_by_throttling_is_demand(cell) -> None:
    rows.a_machine(cell)
    cycle = Cycle(cell)
    job = running(cell)
    cycle.turn()
    cycle.use(job, cpu=100)
    cycle.after(2000)
    assert reservation(job)[0] < 500
    cycle.used[task_id(job.id, 0)] = Usage(100, processes=1, throttled_milli=500)
    cycle.report()
    cycle.turn(seconds=EVERY_S)
    assert reservation(job)[0] == 750


def test_the_console_shows_what_is_used_and_what_is_reclaimed(tmp_path, settings) -> None:
    settings.BORG_AUTHORITY = str(tmp_path / "authority")
    world = portal_world.make()
    path = reverse("admin:scheduling_cell_change", args=[world.cell.pk])
    sre = portal_world.signed_in("sre")
    wakeups.client().delete(f"borg:reclaim:{world.cell.pk}")
    assert "no measurement in the last minute" in sre.get(path).text
    sums = dict.fromkeys(("cpu", "ram", "disk"), 0)
    utilisation.publish(
        world.cell.pk,
        utilisation.UtilisationFigures(
            at=0.0,
            setting="medium",
            running=3,
            measured=2,
            short=1,
            capacity=sums | {"cpu": 8000},
            limit=sums | {"cpu": 4000},
            reservation=sums | {"cpu": 1000},
            usage=sums | {"cpu": 500},
        ),
    )
    page = sre.get(path).text
    assert "0.5 cores used, 1 core reserved, limits 4 cores, capacity 8 cores; 75% of the limits reclaimed" in page
    wakeups.client().delete(f"borg:reclaim:{world.cell.pk}")


def test_settings_are_checked() -> None:
    with pytest.raises(Rejected, match="reclamation must be off or baseline or medium or aggressive"):
        cell_settings.load({"reclamation": "reckless"})
    with pytest.raises(Rejected, match="shortage_at must be between 0 and 1"):
        cell_settings.load({"shortage_at": 1.5})
