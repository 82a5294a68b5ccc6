"""Tests of samples for capacity planning: their figures are those of rows and Redis, and add up in reports."""

from __future__ import annotations

import csv
import datetime as dt
import io

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quota.models import PriorityBand, Quota
from quota.vocabulary.errors import Forbidden
from quota.vocabulary.permissions import Principal, Role, system
from quota.vocabulary.resources import CPU, RAM
from scheduling.cells import capacity_samples
from scheduling.cells.capacity_reports import ReportStep, history, table
from scheduling.cells.capacity_samples import capacity_sample, samples_drop_old
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import wakeups
from scheduling.models import CapacitySample, Job
from scheduling.usage import live_usage
from tests.integration import portal_world, rows

pytestmark = pytest.mark.django_db
SRE = system("test")
NOON = dt.datetime(2026, 11, 21, 12, 5, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
GIB = 2**30


@pytest.fixture
def world():
    """Yield a world with a machine of 64 cores. Of job jfoo, task 0 uses 40 milli-cores there, and two are pending."""
    world = portal_world.make()
    uses(world.cell, {task_id(world.job.id, 0): (30, 10, 2**20, 2**10)})
    yield world
    wakeups.client().delete(f"borg:usage:{world.cell.id}")


def uses(cell, tasks, *, age_s: float = 0.0) -> None:
    """Store samples of usage in Redis that are `age_s` seconds old.

    `tasks`: (milli-cores used, milli-cores denied, bytes of RAM, bytes of disk) by id of the task.
    """
    seconds, micros = wakeups.client().time()
    found = np.zeros(len(tasks), dtype=live_usage.SAMPLE)
    for row, (task, (cpu, denied, ram, disk)) in zip(found, tasks.items(), strict=True):
        row["task_id"], row["at"], row["incarnation"] = task, seconds + micros / 1e6 - age_s, 1
        row["cpu_milli"], row["throttled_milli"], row["ram_bytes"], row["disk_bytes"] = cpu, denied, ram, disk
    wakeups.client().hset(f"borg:usage:{cell.id}", "1", found.tobytes())


def sample(band: str = "") -> CapacitySample:
    return CapacitySample.objects.get(band=band)


def test_a_sample_says_what_is_sold_asked_for_reserved_and_used(world) -> None:
    assert capacity_sample(world.cell, now=NOON)
    whole, production = sample(), sample("production")
    small = list(rows.SMALL)
    assert whole.hour == NOON.replace(minute=0)
    assert whole.capacity == list(rows.LARGE)
    assert production.sold == production.granted == list(rows.LARGE)
    assert production.asked == [3 * value for value in small]
    assert production.limit == production.reserved == small
    assert production.used[:3] == [40, 2**20, 2**10]
    assert [whole.sold, whole.asked, whole.used] == [production.sold, production.asked, production.used]
    assert production.capacity == production.stranded == [0] * 6


def test_what_is_sold_counts_until_the_grace_ends_and_trials_never(world) -> None:
    Quota.objects.update(ends_at=NOON - MINUTE, grace_until=NOON + MINUTE)
    trial = rows.grant(world.tenant, world.cell, "batch")
    trial.beyond_capacity = True
    trial.save()
    capacity_sample(world.cell, now=NOON)
    assert (sample("production").sold[0], sample("production").granted[0]) == (64_000, 0)
    assert (sample("batch").sold[0], sample("batch").granted[0]) == (0, 64_000)


def test_jobs_that_ended_and_samples_of_silent_machines_don_t_count(world) -> None:
    uses(world.cell, {task_id(world.job.id, 0): (30, 10, 2**20, 2**10)}, age_s=capacity_samples.FRESH_S + 5)
    capacity_sample(world.cell, now=NOON)
    assert sample().used == [0] * 6
    CapacitySample.objects.all().delete()
    Job.objects.update(state="dead")
    capacity_sample(world.cell, now=NOON)
    assert sample().asked == [0] * 6


def test_an_hour_is_one_row_of_means_and_two_looks_at_once_count_once(world) -> None:
    assert capacity_sample(world.cell, now=NOON)
    uses(world.cell, {task_id(world.job.id, 0): (90, 10, 2**20, 2**10)})
    assert not capacity_sample(world.cell, now=NOON + MINUTE)
    assert sample().used[CPU] == 40
    assert capacity_sample(world.cell, now=NOON + 10 * MINUTE)
    assert (sample().used[CPU], sample().samples) == (70, 2)
    assert capacity_sample(world.cell, now=NOON + 60 * MINUTE)
    assert [row.used[CPU] for row in CapacitySample.objects.filter(band="").order_by("hour")] == [70, 100]


def test_what_no_typical_task_can_use_is_stranded(world) -> None:
    rows.a_machine(world.cell, "narrow", capacity=(64_000, 2**26 - 1, 2**40, 0, 0, 100))
    capacity_sample(world.cell, now=NOON)
    # On the narrow machine no task of 64 MiB fits. On the other machine, CPU is used up first.
    assert sample().stranded[RAM] >= 2**26 - 1
    assert 64_000 <= sample().stranded[CPU] < 64_100


def test_a_look_costs_the_same_whatever_there_is_to_see(world) -> None:
    def cost(now: dt.datetime) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert capacity_sample(world.cell, now=now)
        return len(captured)

    few = cost(NOON)
    for number in range(4):
        job = rows.a_job(world.cell, rows.a_tenant(f"t{number}"), f"j{number}", priority=(110, 5)[number % 2])
        portal_world.place(job, 0, rows.a_machine(world.cell, f"n{number}"), port=21_000)
    assert cost(NOON + 60 * MINUTE) == few == 7


def test_old_samples_are_forgotten(world) -> None:
    capacity_sample(world.cell, now=NOON - capacity_samples.KEPT - 120 * MINUTE)
    capacity_sample(world.cell, now=NOON)
    assert samples_drop_old(now=NOON) == 2
    assert {row.hour for row in CapacitySample.objects.all()} == {NOON.replace(minute=0)}


def test_reports_are_for_sres_and_days_are_means_of_their_hours(world) -> None:
    for hours, cpu in ((0, 40), (1, 80), (13, 10)):
        uses(world.cell, {task_id(world.job.id, 0): (cpu, 0, 0, 0)})
        capacity_sample(world.cell, now=NOON + dt.timedelta(hours=hours))
    span = {"since": NOON - dt.timedelta(days=1), "until": NOON + dt.timedelta(days=2)}
    owner = Principal(name="owner", roles={"ubar": Role.OWNER})
    with pytest.raises(Forbidden):
        history(owner, world.cell, step=ReportStep.DAY, **span)
    hours = history(SRE, world.cell, step=ReportStep.HOUR, **span)
    assert [point.used[CPU] for point in hours] == [40, 80, 10]
    days = history(SRE, world.cell, step=ReportStep.DAY, **span)
    assert [(point.at.day, point.used[CPU]) for point in days] == [(21, 60), (22, 10)]
    assert days[0].value("idle", CPU) == 100 - 60
    assert days[0].value("unused", CPU) == 0
    everything = history(SRE, world.cell, step=ReportStep.DAY, band=None, **span)
    assert {point.band for point in everything} == {"", "production"}


def test_the_table_is_exact_and_names_its_units(world) -> None:
    capacity_sample(world.cell, now=NOON)
    points = history(SRE, world.cell, since=NOON - MINUTE * 60, until=NOON + MINUTE, step=ReportStep.HOUR)
    out = io.StringIO()
    csv.writer(out).writerows(table(points, cell="cc"))
    read = list(csv.DictReader(io.StringIO(out.getvalue())))
    ram = next(row for row in read if row["resource"] == "ram")
    assert (ram["unit"], int(ram["capacity"]), int(ram["used"])) == ("bytes", rows.LARGE[RAM], 2**20)
    assert ram["time"] == "2026-11-21T12:00:00+00:00"


def test_samples_reach_the_edge_of_64_bits(world) -> None:
    band = PriorityBand.objects.get(name="production")
    most = 2**63 - 1
    Quota.objects.update(amounts=[most] * 6)
    rows.grant(rows.a_tenant("other"), world.cell, "production", amounts=(most,) * 6)
    assert capacity_sample(world.cell, now=NOON)
    assert capacity_sample(world.cell, now=NOON + 10 * MINUTE)
    assert sample(band.name).sold == [most] * 6
