"""Tests of the autoscaler on real PostgreSQL and Redis: numbers of tasks follow load and schedules (horizontal)."""

from __future__ import annotations

import datetime as dt
import http.server
import threading
from typing import Any

import pytest
from django.utils import timezone

from quota.models import Quota
from scheduling.autoscaling import changes, task_metrics, turns
from scheduling.autoscaling.rejections import TASKS
from scheduling.jobs.actions.autoscaled import ScaledValues
from scheduling.models import Event, Job, JobAutoscaling, Task
from tests.integration import world
from tests.integration.autoscaling_world import HORIZONTAL, MIB, later, loaded, submitter, turn, values

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def submit(cell, ann, machine):
    return submitter(cell, ann, machine)


def test_tasks_follow_the_use_of_cpu_up_and_down(submit, machine) -> None:
    job = submit(HORIZONTAL)
    loaded(job, 900)
    assert turn(job) == 1
    assert values(job)[0] == 6, "3 tasks that use 0.9 of 1 core need 5.4 tasks at 0.5"
    world.bring_up(job, machine)
    changed = Event.objects.filter(job_id=job.id, kind="job.changed").latest("revision")
    assert (
        changed.data["reason"]
        == "autoscaler: 3 to 6 tasks, because 5.4 tasks are needed to bring the load of each to its target"
    )
    later(job, 3600, "needed_at", "tasks_at")
    loaded(job, 100)
    assert turn(job) == 0, "fewer tasks must be enough for a while"
    later(job, 61, "low_since")
    assert turn(job) == 1
    assert values(job)[0] == 2
    assert Task.objects.filter(job=job, state="running").count() == 2


def test_without_usage_no_task_is_added_or_removed(submit) -> None:
    job = submit(HORIZONTAL)
    later_turns = [turn(job) for _ in range(3)]
    assert later_turns == [0, 0, 0]
    assert JobAutoscaling.objects.get(job=job).wanted_tasks == 3


def test_a_schedule_sets_the_number_of_tasks(submit) -> None:
    now = timezone.now() - dt.timedelta(minutes=2)
    line = {"at": f"{now.minute} {now.hour} * * *", "tasks": 5}
    job = submit({"horizontal": {"max": 6, "schedule": [line]}})
    assert turn(job) == 1
    assert values(job)[0] == 5
    changed = Event.objects.filter(job_id=job.id, kind="job.changed").latest("revision")
    assert changed.data["reason"] == "autoscaler: 3 to 5 tasks, by schedule"


def test_a_rejection_by_quota_is_recorded_once_and_tried_again_later(submit, cell) -> None:
    job = submit(HORIZONTAL)
    Quota.objects.update(amounts=[3000, 2**40, 2**40, 0, 0, 1000])
    loaded(job, 900)
    assert turn(job) == 0
    row = JobAutoscaling.objects.get(job=job)
    assert row.tasks_limited_code == "quota-exceeded"
    assert row.tasks_retry_at is not None
    rejected = Event.objects.filter(kind="job.rejected")
    assert rejected.count() == 1
    assert turn(job) == 0
    assert JobAutoscaling.objects.get(job=job).tasks_retry_at == row.tasks_retry_at, "it was not tried again"
    later(job, 120, "tasks_retry_at", "tasks_limited_since")
    assert turn(job) == 0
    again = JobAutoscaling.objects.get(job=job)
    assert (again.tasks_retry_at - timezone.now()).total_seconds() > 90, "the next try comes later than the one before"
    assert rejected.count() == 1
    Quota.objects.update(amounts=[30_000, 2**40, 2**40, 0, 0, 1000])
    later(job, 3600, "tasks_retry_at")
    assert turn(job) == 1
    assert JobAutoscaling.objects.get(job=job).tasks_limited_code == ""


def test_tasks_are_removed_while_more_of_them_are_rejected(submit, cell) -> None:
    job = submit(HORIZONTAL)
    Quota.objects.update(amounts=[3000, 2**40, 2**40, 0, 0, 1000])
    loaded(job, 900)
    turn(job)
    assert JobAutoscaling.objects.get(job=job).tasks_retry_at is not None
    later(job, 3600, "needed_at")
    loaded(job, 100)
    turn(job)
    later(job, 61, "low_since")
    assert turn(job) == 1
    assert values(job)[0] == 1


def test_a_part_of_the_tasks_is_added_if_quota_has_room_for_it(submit, cell) -> None:
    job = submit(HORIZONTAL)
    Quota.objects.update(amounts=[4500, 2**40, 2**40, 0, 0, 1000])
    loaded(job, 900)
    assert turn(job) == 1
    assert values(job)[0] == 4
    assert JobAutoscaling.objects.get(job=job).tasks_limited_code == "quota-exceeded"


def test_a_rejection_ends_if_no_more_tasks_are_needed_at_the_next_attempt(submit, cell) -> None:
    job = submit(HORIZONTAL)
    Quota.objects.update(amounts=[3000, 2**40, 2**40, 0, 0, 1000])
    loaded(job, 900)
    turn(job)
    assert turns.limited_jobs() == {cell.id: 1}
    later(job, 3600, "needed_at")
    loaded(job, 500)
    turn(job)
    assert turns.limited_jobs() == {cell.id: 1}, "it lasts until then, so that its tenant is notified once"
    later(job, 120, "tasks_retry_at", "tasks_limited_since")
    turn(job)
    assert turns.limited_jobs() == {}
    row = JobAutoscaling.objects.get(job=job)
    assert (row.tasks_limited_code, row.tasks_limited_since, row.tasks_retry_at) == ("", None, None)


def test_a_rejection_ends_if_tasks_have_ended_by_themselves(submit) -> None:
    job = submit(HORIZONTAL)
    JobAutoscaling.objects.filter(job=job).update(version=1, horizontal="auto", tasks=4)  # one of four has ended
    rejected = TASKS.values("quota-exceeded", "too little", timezone.now(), timezone.now())
    JobAutoscaling.objects.filter(job=job).update(**rejected)
    turn(job)
    assert JobAutoscaling.objects.get(job=job).tasks_limited_code == ""


def test_fewer_tasks_are_tried_and_at_last_one_task() -> None:
    tried = changes._attempts(ScaledValues(105, 1000, MIB), ScaledValues(5, 1000, MIB))
    assert [values.tasks for values in tried] == [105, 55, 30, 17, 6]


class TestMetrics:
    """A task that serves metrics, which the autoscaler asks itself."""

    @pytest.fixture
    def served(self):
        """Return what a server on this machine answers, and its port."""
        task_metrics._left_out.clear()  # another test may have had this port for a task that did not answer
        answers = {"text": "", "status": 200}
        ended = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if answers["text"] == "slow":  # part of an answer, and then nothing more
                    self.wfile.write(b"HTTP/1.0 200 OK\r\n")
                    self.wfile.flush()
                    ended.wait(30)
                    return
                body = answers["text"].encode()
                self.send_response(answers["status"] if self.path == "/metrics" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Location", "/metrics")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield answers, server.server_address[1]
            ended.set()
            server.shutdown()
            thread.join()

    def job(self, submit, port: int, **metric: Any) -> Job:
        metric = {"name": "queue_length", "target": 10, "port": "http", "over": "max"} | metric
        job = submit({"horizontal": {"max": 6, "metric": metric, "window_s": 5, "up_s": 10}})
        Task.objects.filter(job=job, index=0).update(ports=[port])  # nothing listens on the ports of the others
        return job

    def reset(self, job: Job) -> None:
        """Give the task back its port, so that its rows agree with the journal."""
        Task.objects.filter(job=job, index=0).update(ports=[20_000 + 1000 * 0])

    def test_tasks_follow_a_queue(self, submit, served) -> None:
        answers, port = served
        job = self.job(submit, port)
        answers["text"] = "# TYPE queue_length gauge\nqueue_length 47\n"
        assert turn(job) == 1
        assert values(job)[0] == 5
        self.reset(job)

    @pytest.mark.parametrize(
        ("text", "status"), [("other 5\n", 200), ("queue_length 47\n", 500), ("queue_length 47\n", 302), ("slow", 200)]
    )
    def test_without_the_metric_nothing_changes(self, submit, served, text: str, status: int) -> None:
        answers, port = served
        answers.update(text=text, status=status)
        job = self.job(submit, port)
        assert turn(job) == 0
        assert JobAutoscaling.objects.get(job=job).needed is None
        self.reset(job)
