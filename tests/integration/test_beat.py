"""Tests of Celery beat on several hosts: one sends the periodic tasks, and the others are standbys."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from django.db import connection
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks

from portal.celery import app
from serving.beat import _LOCK, STANDBY_S, StandbyScheduler

pytestmark = pytest.mark.django_db(transaction=True)


class Recorder(StandbyScheduler):
    """A scheduler that records the names of the tasks that it sends, instead of sending them."""

    def setup_schedule(self) -> None:
        self.sent: list[str] = []
        assert self.schedule  # read at the start, as in production

    def apply_entry(self, entry: object, producer: object = None) -> None:
        self.sent.append(entry.name)  # type: ignore[attr-defined]

    def run(self) -> None:
        """Call `tick` until no task is due."""
        while self.tick() == 0:
            pass


@pytest.fixture
def task() -> PeriodicTask:
    PeriodicTask.objects.all().delete()
    hourly = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.HOURS)
    long_ago = timezone.now() - timezone.timedelta(hours=2)
    made = PeriodicTask.objects.create(name="hourly", task="none", interval=hourly, last_run_at=long_ago)
    PeriodicTasks.update_changed()
    return made


@pytest.fixture
def beats() -> Iterator[tuple[Recorder, Recorder]]:
    made = Recorder(app), Recorder(app)
    yield made
    for one in made:
        one.close()


def take_over(standby: Recorder) -> None:
    """Let a standby run until it works. PostgreSQL releases the lock a moment after the session has ended."""
    until = time.monotonic() + 30.0
    while not standby.works:
        assert time.monotonic() < until, "the standby does not take over"
        if standby.tick() == STANDBY_S:
            time.sleep(0.02)
    standby.run()


def test_one_of_two_beats_sends_tasks_and_the_other_takes_over_without_sending_again(
    task: PeriodicTask, beats: tuple[Recorder, Recorder]
) -> None:
    first, second = beats
    first.run()
    assert (first.works, first.sent) == (True, ["hourly"])
    assert second.tick() == STANDBY_S
    assert (second.works, second.sent) == (False, [])
    first.close()  # at the end of the process
    take_over(second)
    assert second.sent == [], "the task was sent less than an hour ago"


def test_a_beat_whose_session_has_ended_becomes_a_standby(task: PeriodicTask, beats: tuple[Recorder, Recorder]) -> None:
    first, second = beats
    first.run()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'"
            " AND (classid::bigint << 32) + objid::bigint = %s",
            [_LOCK],
        )
        assert cursor.fetchall() == [(True,)]
    take_over(second)
    assert first.tick() == STANDBY_S  # it notices that its session has ended
    assert first.tick() == STANDBY_S
    assert not first.works
