"""Tests of figures of scheduling passes, of the waiting times of pending tasks, and of a Redis that does not answer."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.core.vocabulary import events
from scheduling.journal import journal, wakeups
from scheduling.master import pass_log, queue_health
from scheduling.master.loop import PLACED_AT_ONCE, Master
from scheduling.master.pass_log import Pass
from scheduling.models import Cell, Task
from tests.integration import rows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell() -> Cell:
    cell = rows.a_cell()
    wakeups.client().delete(f"borg:passes:{cell.id}:default")
    return cell


def a_pass(**figures: float) -> Pass:
    nothing = dict.fromkeys(Pass.__struct_fields__, 0)
    return Pass(**{**nothing, **figures})


# --- passes


def test_a_pass_is_kept_with_its_figures(cell) -> None:
    rows.a_machine(cell, capacity=(250, 2**31, 2**31, 0, 0, 0))
    tenant = rows.a_tenant()
    rows.a_job(cell, tenant, "low", tasks=3, priority=100, latency_sensitive=False)
    master = Master(cell.id)
    master.tick()
    rows.a_job(cell, tenant, "high", tasks=1, priority=200)
    master.tick()
    second, first = pass_log.recent(cell.id, "default")
    assert (first.pending, first.classes, first.placed, first.preempted, first.unplaced) == (3, 1, 2, 0, 1)
    assert (second.pending, second.placed, second.preempted, second.conflicts) == (2, 1, 1, 0)
    assert second.revision > first.revision
    assert second.pass_ms > 0 < second.commit_ms
    assert abs(second.at - time.time()) < 60


def test_only_the_last_passes_are_kept(cell) -> None:
    for number in range(pass_log.KEPT + 5):
        pass_log.record(cell.id, cell.name, "default", a_pass(revision=number))
    kept = pass_log.recent(cell.id, "default")
    assert [one.revision for one in kept] == list(range(pass_log.KEPT + 4, 4, -1))
    assert [one.revision for one in pass_log.recent(cell.id, "default", 2)] == [204, 203]
    assert wakeups.client().llen(f"borg:passes:{cell.id}:default") == pass_log.KEPT
    assert pass_log.recent(cell.id, "batch") == []


def test_passes_are_summed_up() -> None:
    made = [
        a_pass(pass_ms=number, commit_ms=2 * number, placed=3, conflicts=1, cache_hits=9, cache_misses=1)
        for number in range(1, 101)
    ]
    told = pass_log.summary(made)
    assert told is not None
    assert (told.passes, told.placed, told.conflicts) == (100, 300, 100)
    assert (told.pass_p50, told.pass_p99) == pytest.approx((50.5, 99.01))
    assert (told.commit_p50, told.commit_p99) == pytest.approx((101.0, 198.02))
    assert (told.conflict_percent, told.cache_percent) == (25.0, 90.0)


def test_nothing_has_no_percentage() -> None:
    assert pass_log.summary([]) is None
    told = pass_log.summary([a_pass(pass_ms=1)])
    assert told is not None
    assert (told.conflict_percent, told.cache_percent) == (None, None)


# --- the queue


def test_a_huge_job_does_not_block_the_head_of_the_line(cell) -> None:
    """Small jobs arrive after a job of 20,000 tasks with the same priority. The first revision places all of them."""
    for number in range(40):
        rows.a_machine(cell, f"m{number}", capacity=(64_000, 2**40, 2**42, 0, 0, 0), rack=f"r{number}")
    huge = rows.a_job(cell, rows.a_tenant("greedy"), "huge", tasks=20_000, priority=110)
    small = [rows.a_job(cell, rows.a_tenant(f"modest{number}"), "small", tasks=3, priority=110) for number in range(5)]
    own = rows.a_job(cell, huge.tenant, "own", tasks=3, priority=110)
    Master(cell.id).tick()
    placed = [
        (record.revision, record.event.job_id)
        for record in journal.tail(cell.id, after=0)
        if isinstance(record.event, events.TaskPlaced)
    ]
    first = [job for revision, job in placed if revision == placed[0][0]]
    for job in [*small, own]:
        assert first.count(job.id) == 3, "it waited behind the huge job"
    assert [job for _, job in placed].count(huge.id) == PLACED_AT_ONCE - 18


def test_pending_tasks_and_their_waiting_times_are_reported_by_priority(cell) -> None:
    tenant = rows.a_tenant()
    old = rows.a_job(cell, tenant, "old", tasks=2, priority=110)
    rows.a_job(cell, tenant, "new", tasks=3, priority=110)
    rows.a_job(cell, tenant, "web", tasks=1, priority=200)
    done = rows.a_job(cell, tenant, "done", tasks=1, priority=0)
    Task.objects.filter(job=old, index=1).update(since=timezone.now() - timezone.timedelta(hours=2))
    Task.objects.filter(job=done).update(state="dead")
    high, low = queue_health.queues(cell.id)
    assert (high.band, high.priority, high.jobs, high.tasks) == ("production", 200, 1, 1)
    assert (low.band, low.priority, low.jobs, low.tasks) == ("batch", 110, 2, 5)
    assert high.oldest_s < 60
    assert 7_200 <= low.oldest_s < 7_300
    text = Client().get("/metrics").content.decode()
    assert 'borg_pending_tasks{band="batch",cell="cc",priority="110"} 5.0' in text
    assert 'borg_oldest_pending_seconds{band="batch",cell="cc",priority="110"} 72' in text
    assert 'borg_schedulers_missing{cell="cc"} 1.0' in text


def test_every_metric_is_documented() -> None:
    told = "".join(readme.read_text() for readme in Path(pass_log.__file__).parents[1].rglob("README.md"))
    families = {
        line.split()[2]
        for line in Client().get("/metrics").content.decode().splitlines()
        if line.startswith("# TYPE borg_") and not line.split()[2].endswith("_created")
    }
    assert [name for name in sorted(families) if f"`{name}`" not in told] == []


# --- a Redis that stands still


def test_a_redis_that_stands_still_costs_a_writer_a_moment_once(tmp_path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "redis.sock"))
        mute.listen()
        sender = wakeups.Sender(f"unix://{tmp_path}/redis.sock")
        started = time.monotonic()
        assert sender.send("notice", lambda redis: redis.publish("c", 1)) is False
        once = time.monotonic() - started
        assert wakeups.HURRY_S <= once < wakeups.HURRY_S + 10.0
        for _ in range(1_000):
            sender.send("notice", lambda redis: redis.publish("c", 1))
        assert time.monotonic() - started < once + 20.0, "it tried again and again"
