"""Tests of the autoscaler on real PostgreSQL and Redis: limits follow measured use (vertical)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from quota.models import Quota
from quota.vocabulary.errors import Conflict
from scheduling.autoscaling import limits_turn
from scheduling.autoscaling.accepting import accepted_spec
from scheduling.autoscaling.rejections import LIMITS
from scheduling.autoscaling.selectors import recommendation_of
from scheduling.jobs import updates
from scheduling.jobs.actions.autoscaled import AUTOSCALER
from scheduling.master.snapshot import load_state
from scheduling.models import Event, Job, JobAutoscaling, JobSpec, Machine, Task, Update
from scheduling.usage.cell_view import ViewPublisher
from tests.integration import rows, world
from tests.integration.autoscaling_world import (
    HORIZONTAL,
    MIB,
    VERTICAL,
    a_file,
    later,
    loaded,
    submitter,
    turn,
    used,
    values,
)

RECOMMEND = {"vertical": VERTICAL["vertical"] | {"mode": "recommend"}}
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def submit(cell, ann, machine):
    return submitter(cell, ann, machine)


def test_limits_follow_measured_use_without_a_restart(submit) -> None:
    job = submit(VERTICAL)
    used(job)
    assert turn(job) == 1
    assert values(job) == (3, 500, 512 * MIB), "halved at most"
    tasks = Task.objects.filter(job=job)
    assert set(tasks.values_list("incarnation", "spec_version")) == {(1, 2)}, "no task was restarted"
    version = JobSpec.objects.get(job=job, version=2)
    assert version.actor == AUTOSCALER.name
    changed = Event.objects.filter(job_id=job.id, kind="job.changed").latest("revision")
    assert changed.data["reason"] == (
        "autoscaler: limit of CPU from 1 core to 0.5 cores and of RAM from 1 GiB to 512 MiB, by measured use"
    )
    assert turn(job) == 0, "the next change comes later"
    later(job, 60, "limits_at")
    assert turn(job) == 1
    assert values(job) == (3, 250, 256 * MIB)


def test_a_recommendation_changes_nothing_and_says_what_it_saves(submit) -> None:
    job = submit({"vertical": {"history_s": 3600}})
    used(job)
    assert turn(job) == 0
    found = recommendation_of(Job.objects.select_related("cell").get(pk=job.pk))
    assert found.available
    assert found.wanted.tasks == 3
    assert 220 <= found.wanted.cpu <= 250
    assert 115 * MIB <= found.wanted.ram <= 125 * MIB
    assert found.saves > 0
    assert values(job) == (3, 1000, 1024 * MIB)


def test_too_short_a_history_recommends_nothing(submit) -> None:
    job = submit({"vertical": {"mode": "auto", "history_s": 4 * 3600}})
    used(job)
    assert turn(job) == 0
    assert JobAutoscaling.objects.get(job=job).wanted_cpu is None


def test_each_window_counts_once(submit) -> None:
    job = submit(RECOMMEND)
    used(job)
    turn(job)
    first = JobAutoscaling.objects.get(job=job)
    turn(job)
    turn(job)
    again = JobAutoscaling.objects.get(job=job)
    assert bytes(again.ram_weights) == bytes(first.ram_weights)
    assert np.frombuffer(first.ram_weights, "<f4").sum() == pytest.approx(3 * 34, rel=0.1), "they have decayed a little"


def weight(job: Job) -> float:
    """Return the weight of all windows in the histogram of RAM of a job."""
    return float(np.frombuffer(JobAutoscaling.objects.get(job=job).ram_weights, "<f4").sum())


def test_windows_count_if_the_job_changes_during_the_turn(submit, monkeypatch) -> None:
    job = submit(RECOMMEND)
    used(job)
    read = limits_turn.tasks_read

    def slow(job_ids: Sequence[int]) -> Any:
        JobAutoscaling.objects.update(version=2)  # another process has followed a new version
        return read(job_ids)

    monkeypatch.setattr(limits_turn, "tasks_read", slow)
    turn(job)
    row = JobAutoscaling.objects.get(job=job)
    assert row.wanted_cpu is None, "it was computed for the version before"
    assert weight(job) > 0
    monkeypatch.undo()
    JobAutoscaling.objects.update(version=1)
    turn(job)
    assert JobAutoscaling.objects.get(job=job).wanted_cpu is not None
    assert weight(job) == pytest.approx(3 * 34, rel=0.1), "no window counts twice"


def test_windows_of_turns_without_the_job_are_read_later(submit) -> None:
    job = submit(RECOMMEND)
    turn(job)
    later(job, 4 * 3600, "decayed_at")  # this process could not read its rules for some hours
    used(job)
    turn(job)
    assert weight(job) == pytest.approx(3 * 34, rel=0.1)


def test_new_jobs_that_a_turn_leaves_out_are_read_in_the_next_one(submit, cell, ann, monkeypatch) -> None:
    job = submit(VERTICAL)
    other = submitter(cell, ann, rows.a_machine(cell, "m2"))(VERTICAL, name="other")
    used(other)
    killed(other, at=1.0)
    monkeypatch.setattr(limits_turn, "MOST_NEW", 1)
    assert turn(job) == 0
    assert JobAutoscaling.objects.get(job=other).decayed_at is None
    assert turn(job) == 1
    assert values(other)[1] == 500


def test_a_task_out_of_memory_raises_the_limit_at_once(submit) -> None:
    job = submit(VERTICAL | {"vertical": VERTICAL["vertical"] | {"every_s": 3600}})
    used(job, ram=900 * MIB, cpu=900)
    assert turn(job) == 0
    exit_ = {"cause": "out-of-memory", "at": timezone.now().timestamp(), "signal": 9}
    Task.objects.filter(job=job, index=1).update(exit=exit_)
    assert turn(job) == 1
    tasks, cpu, ram = values(job)
    assert (tasks, cpu) == (3, 1000)
    assert 1024 * 1.2 * MIB <= ram <= 2048 * MIB
    changed = Event.objects.filter(job_id=job.id, kind="job.changed").latest("revision")
    assert changed.data["reason"].endswith("because a task ran out of memory")
    assert turn(job) == 0, "the same end counts once"


def test_limits_never_fall_below_reservations(submit) -> None:
    job = submit(VERTICAL)
    used(job)
    Task.objects.filter(job=job, index=2).update(reservation=[800, 700 * MIB, 0, 0, 0, 1])
    assert turn(job) == 1
    assert values(job) == (3, 800, 700 * MIB)


def test_a_burst_keeps_a_limit_from_falling_and_raises_none(submit) -> None:
    job = submit(VERTICAL)
    used(job)
    loaded(job, 5000, tasks=1)
    assert turn(job) == 1
    assert values(job) == (3, 1000, 512 * MIB)


def test_bounds_of_the_job_file_hold(submit) -> None:
    rules = VERTICAL["vertical"] | {"min": {"cpu": "700m"}, "max": {"ram": "600Mi"}}
    job = submit({"vertical": rules})
    used(job)
    turn(job)
    assert values(job) == (3, 700, 512 * MIB)


def test_nothing_changes_during_an_update_of_a_user(submit, ann, cell) -> None:
    job = submit(VERTICAL)
    used(job)
    file = a_file(VERTICAL)
    file["task"] = file["task"] | {"command": ["other"]}
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    assert Update.objects.filter(job=job, state="open").exists()
    assert turn(job) == 0
    assert values(job) == (3, 1000, 1024 * MIB)


def killed(job: Job, *, at: float, index: int = 1) -> None:
    """Let a task have ended at a time because it ran out of memory."""
    exit_ = {"cause": "out-of-memory", "at": at, "signal": 9}
    Task.objects.filter(job=job, index=index).update(exit=exit_)


def test_a_task_out_of_memory_without_history_raises_only_the_limit_of_ram(submit) -> None:
    job = submit({"vertical": VERTICAL["vertical"] | {"history_s": 86_400}})
    used(job, hours=1)
    assert turn(job) == 0
    killed(job, at=timezone.now().timestamp())
    assert turn(job) == 1
    _, cpu, ram = values(job)
    assert cpu == 1000
    assert ram > 1024 * MIB
    later(job, 3600, "limits_at", "oom_at")
    assert turn(job) == 0, "there is still too little history for lower limits"


def test_only_ends_under_the_present_limit_raise_it(submit) -> None:
    job = submit({"vertical": VERTICAL["vertical"] | {"history_s": 86_400}})
    now = timezone.now().timestamp()
    killed(job, at=now - 86_400)
    assert turn(job) == 0, "it ended before the job had rules"
    killed(job, at=now, index=2)
    assert turn(job) == 1
    raised = values(job)
    killed(job, at=now + 1, index=0)  # it was seen after the change
    later(job, -60, "limits_at")
    assert turn(job) == 0
    later(job, 3600, "limits_at", "oom_at")
    Task.objects.filter(job=job, index=1).update(limit=[1000, 1024 * MIB, 64 * MIB, 0, 0, 1])
    killed(job, at=now + 2)  # with the limit before the change
    assert turn(job) == 0
    assert values(job) == raised
    Task.objects.filter(job=job, index=1).update(limit=Task.objects.get(job=job, index=0).limit)


def test_a_rejection_of_more_tasks_delays_no_memory_after_a_kill(submit) -> None:
    at = timezone.now() - dt.timedelta(minutes=2)
    schedule = [{"at": f"{at.minute} {at.hour} * * *", "tasks": 6}]
    job = submit(VERTICAL | {"horizontal": {"max": 6, "schedule": schedule}})
    Quota.objects.update(amounts=[3000, 2**40, 2**40, 0, 0, 1000])
    assert turn(job) == 0
    assert JobAutoscaling.objects.get(job=job).tasks_limited_code == "quota-exceeded"
    killed(job, at=timezone.now().timestamp())
    assert turn(job) == 1
    assert values(job)[2] > 1024 * MIB
    assert JobAutoscaling.objects.get(job=job).tasks_limited_code == "quota-exceeded", "it is still rejected"


def test_memory_after_a_kill_is_tried_in_each_turn_and_without_more_cpu(submit) -> None:
    job = submit(VERTICAL)
    used(job, cpu=1500, ram=900 * MIB)
    Quota.objects.update(amounts=[3000, 3 * 2**30, 2**40, 0, 0, 1000])
    assert turn(job) == 0
    row = JobAutoscaling.objects.get(job=job)
    assert (row.limited_code, row.tasks_limited_code) == ("quota-exceeded", "")
    Quota.objects.update(amounts=[3000, 2**40, 2**40, 0, 0, 1000])
    assert turn(job) == 0, "the next attempt is later"
    killed(job, at=timezone.now().timestamp())
    assert turn(job) == 1
    _, cpu, ram = values(job)
    assert cpu == 1000, "quota has no room for more CPU"
    assert ram > 1024 * MIB
    assert JobAutoscaling.objects.get(job=job).limited_code == "quota-exceeded"


def test_a_rejection_of_memory_leaves_the_time_at_which_cpu_is_tried_again(submit) -> None:
    job = submit(VERTICAL)
    used(job, cpu=1500, ram=900 * MIB)
    Quota.objects.update(amounts=[3000, 3 * 2**30, 2**40, 0, 0, 1000])
    assert turn(job) == 0
    at = timezone.now() + dt.timedelta(minutes=30)
    JobAutoscaling.objects.update(**LIMITS.values("quota-exceeded", "too little", timezone.now(), at, ["cpu"]))
    killed(job, at=timezone.now().timestamp())
    assert turn(job) == 0
    row = JobAutoscaling.objects.get(job=job)
    assert (row.limited_of, getattr(row, LIMITS.retry_at)) == ("cpu,ram", at)


def test_a_rejection_of_limits_ends_if_no_more_is_needed_at_the_next_attempt(submit) -> None:
    job = submit(VERTICAL)
    turn(job)
    now = timezone.now()
    JobAutoscaling.objects.update(**LIMITS.values("quota-exceeded", "too little", now, now + dt.timedelta(hours=1)))
    turn(job)
    assert JobAutoscaling.objects.get(job=job).limited_code == "quota-exceeded"
    later(job, 3600, "retry_at")
    turn(job)
    assert JobAutoscaling.objects.get(job=job).limited_code == ""


def test_limits_do_not_rise_above_the_largest_machine(submit, machine) -> None:
    job = submit({"vertical": VERTICAL["vertical"] | {"mode": "recommend"}})
    used(job, ram=4 * machine.capacity[1])
    turn(job)
    assert JobAutoscaling.objects.get(job=job).wanted_ram <= max(machine.capacity[1], 1024 * MIB)


def test_each_limit_changes_without_the_quota_of_the_other_one(submit) -> None:
    job = submit(VERTICAL)
    used(job, cpu=1500, ram=1000 * MIB)
    Quota.objects.update(amounts=[30_000, 3 * 2**30, 2**40, 0, 0, 1000])
    assert turn(job) == 1
    _, cpu, ram = values(job)
    assert (cpu > 1000, ram) == (True, 1024 * MIB)
    row = JobAutoscaling.objects.get(job=job)
    assert (row.limited_code, row.limited_of) == ("quota-exceeded", "ram")


def test_a_rejected_rise_of_one_limit_delays_no_change_of_the_other_one(submit) -> None:
    job = submit(VERTICAL)
    used(job, cpu=200, ram=1000 * MIB)
    turn(job)
    now = timezone.now()
    rejected = LIMITS.values("quota-exceeded", "too little", now, now + dt.timedelta(hours=1), ["ram"])
    JobAutoscaling.objects.update(**rejected)
    later(job, 3600, "limits_at")
    before = values(job)
    assert turn(job) == 1, "the limit of CPU falls"
    _, cpu, ram = values(job)
    assert (cpu < before[1], ram) == (True, before[2])
    assert JobAutoscaling.objects.get(job=job).limited_code == "quota-exceeded", "it still waits"


def test_old_rejections_of_jobs_without_vertical_scaling_end(submit, cell) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    JobAutoscaling.objects.update(limited_code="quota-exceeded", limited_detail="old", limited_since=timezone.now())
    turn(job)
    row = JobAutoscaling.objects.get(job=job)
    assert (row.limited_code, row.limited_detail, row.limited_since) == ("", "", None)


def test_limits_rise_only_as_far_as_a_machine_that_the_tasks_may_use(submit, cell, ann, machine) -> None:
    small = rows.a_machine(cell, "small", capacity=(16_000, 1536 * MIB, 2**40, 0, 0, 100))
    Machine.objects.filter(pk=small.pk).update(attributes={"pool": "yes"})
    constraint = {"attribute": "pool", "relation": "present"}
    file = a_file(VERTICAL, tasks=1)
    file["task"] = file["task"] | {"constraints": [constraint]}
    job = world.submit(ann, cell, file)
    world.bring_up(job, small)
    ViewPublisher(cell.id).publish(load_state(cell.id))
    used(job, cpu=900, ram=1800 * MIB)
    assert turn(job) == 1
    assert values(job) == (1, 1000, 1536 * MIB)
    row = JobAutoscaling.objects.get(job=job)
    assert row.limited_code == "machines-too-small"
    assert "the largest limits that fit are 1 core of CPU and 1.5 GiB of RAM" in row.limited_detail
    changed = Event.objects.filter(job_id=job.id, kind="job.changed").latest("revision")
    assert "of RAM from 1 GiB to 1.5 GiB" in changed.data["reason"]
    later(job, 3600, "retry_at", "limits_at")
    assert turn(job) == 0, "nothing more fits"
    Machine.objects.filter(pk=small.pk).update(attributes={})


def test_accepting_needs_a_recommendation(submit, ann) -> None:
    job = submit({"vertical": {}})
    turn(job)
    with pytest.raises(Conflict) as error:
        accepted_spec(Job.objects.select_related("cell", "tenant").get(pk=job.pk))
    assert error.value.code == "no-recommendation"
