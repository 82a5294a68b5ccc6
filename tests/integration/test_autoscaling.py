"""Tests of the autoscaler on real PostgreSQL and Redis: recommendations, changes, and who wins."""

from __future__ import annotations

import datetime as dt
import http.server
import threading
from typing import Any

import numpy as np
import pytest
import yaml
from django.test import Client
from django.utils import timezone

from quota.models import Quota
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import Role
from scheduling.autoscaling import task_metrics, tasks_turn, turns
from scheduling.autoscaling.accepting import accepted_spec
from scheduling.autoscaling.rows import rows_repair
from scheduling.autoscaling.rules.horizontal_rules import ScaleDecision, ScaleState
from scheduling.autoscaling.selectors import recommendation_of
from scheduling.autoscaling.turns import autoscale
from scheduling.jobs import updates
from scheduling.jobs.actions.autoscaled import AUTOSCALER, FILE
from scheduling.jobs.actions.scale import job_scale
from scheduling.jobs.submission.revisions import revision_of
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.journal.sql import query
from scheduling.models import CellAutoscaling, Event, Job, JobAutoscaling, JobSpec, Task, Update
from tests.integration import cli_world, rows, world
from tests.integration.autoscaling_world import (
    HORIZONTAL,
    MIB,
    VERTICAL,
    a_file,
    again,
    later,
    loaded,
    submitter,
    turn,
    used,
    values,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def submit(cell, ann, machine):
    return submitter(cell, ann, machine)


def test_a_cell_without_rules_is_left_alone(cell, ann) -> None:
    world.submit(ann, cell, world.a_file())
    assert not autoscale(cell.id).live
    assert not CellAutoscaling.objects.exists()


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
    job = submit(VERTICAL | {"vertical": VERTICAL["vertical"] | {"mode": "recommend"}})
    used(job)
    turn(job)
    first = JobAutoscaling.objects.get(job=job)
    turn(job)
    turn(job)
    again = JobAutoscaling.objects.get(job=job)
    assert bytes(again.ram_weights) == bytes(first.ram_weights)
    assert np.frombuffer(first.ram_weights, "<f4").sum() == pytest.approx(3 * 34, rel=0.1), "they have decayed a little"


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
    assert row.limited_code == "quota-exceeded"
    assert row.retry_at is not None
    rejected = Event.objects.filter(kind="job.rejected")
    assert rejected.count() == 1
    assert turn(job) == 0
    assert JobAutoscaling.objects.get(job=job).retry_at == row.retry_at, "it was not tried again"
    later(job, 120, "retry_at", "limited_since")
    assert turn(job) == 0
    again = JobAutoscaling.objects.get(job=job)
    assert (again.retry_at - timezone.now()).total_seconds() > 90, "the next try comes later than the one before"
    assert rejected.count() == 1
    Quota.objects.update(amounts=[30_000, 2**40, 2**40, 0, 0, 1000])
    later(job, 3600, "retry_at")
    assert turn(job) == 1
    assert JobAutoscaling.objects.get(job=job).limited_code == ""


def test_a_change_by_a_user_wins_and_holds_the_number_of_tasks(submit, ann) -> None:
    job = submit(HORIZONTAL)
    loaded(job, 900)
    turn(job)
    assert values(job)[0] == 6
    updates.updates_advance(job.cell_id)
    job_scale(principal=ann, job=again(job), tasks=2)
    updates.updates_advance(job.cell_id)
    loaded(job, 2000)
    assert turn(job) == 0
    row = JobAutoscaling.objects.get(job=job)
    assert row.own_tasks == 2
    assert row.tasks_held_until is not None
    assert row.limits_held_until is None
    later(job, 60, "tasks_held_until", "tasks_at")
    assert turn(job) == 1


def test_scaling_by_hand_beyond_the_bounds_is_rejected(submit, ann) -> None:
    job = submit(HORIZONTAL)
    with pytest.raises(Rejected, match="outside of 1 to 6"):
        job_scale(principal=ann, job=job, tasks=7)
    assert values(job)[0] == 3


def test_a_change_of_limits_does_not_hold_the_number_of_tasks(submit, ann, cell) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    file = a_file(HORIZONTAL)
    file["task"] = file["task"] | {"limit": {"cpu": "500m", "ram": "1Gi", "disk": "64Mi"}}
    updates.job_update(principal=ann, job=again(job), job_spec=world.read(cell, file), source=FILE)
    updates.updates_advance(cell.id)
    loaded(job, 450)
    assert turn(job) == 1
    assert values(job)[0] == 6


def test_tasks_are_removed_while_more_of_them_are_rejected(submit, cell) -> None:
    job = submit(HORIZONTAL)
    Quota.objects.update(amounts=[3000, 2**40, 2**40, 0, 0, 1000])
    loaded(job, 900)
    turn(job)
    assert JobAutoscaling.objects.get(job=job).retry_at is not None
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
    assert JobAutoscaling.objects.get(job=job).limited_code == "quota-exceeded"


def test_undo_returns_to_before_the_update_of_a_user_with_the_present_number(submit, ann, cell, machine) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    bad = a_file(HORIZONTAL, labels={"version": "bad"})
    updates.job_update(principal=ann, job=again(job), job_spec=world.read(cell, bad), source=FILE)
    updates.updates_advance(cell.id)
    loaded(job, 900)
    assert turn(job) == 1
    updates.job_undo(principal=ann, job=again(job))
    undone = updates.spec_of(again(job))
    assert (undone.labels, undone.tasks) == ({}, 6)
    file = a_file(HORIZONTAL)
    answer = updates.job_update(principal=ann, job=again(job), job_spec=world.read(cell, file), source=FILE)
    assert answer.outcome == "unchanged", "an undo is not a value that a user has set"


def test_undo_of_a_number_that_a_user_has_set_returns_to_the_number_before(submit, ann) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    job_scale(principal=ann, job=again(job), tasks=5)
    updates.updates_advance(job.cell_id)
    updates.job_undo(principal=ann, job=again(job))
    assert values(job)[0] == 3


def test_a_number_that_the_file_has_by_chance_is_its_own(submit, ann, cell) -> None:
    job = submit(HORIZONTAL)
    loaded(job, 900)
    turn(job)
    same = world.read(cell, a_file(HORIZONTAL, tasks=6))
    assert updates.job_update(principal=ann, job=again(job), job_spec=same, source=FILE).outcome == "unchanged"
    assert JobAutoscaling.objects.get(job=job).own_tasks == 6


def test_a_lost_row_is_made_again_with_what_a_user_has_set(submit, ann, cell) -> None:
    job = submit(HORIZONTAL)
    loaded(job, 900)
    turn(job)
    JobAutoscaling.objects.all().delete()
    rows_repair(cell.id)
    turn(job)
    same = world.read(cell, a_file(HORIZONTAL))
    assert updates.job_update(principal=ann, job=again(job), job_spec=same, source=FILE).outcome == "unchanged"
    assert values(job)[0] == 6


def test_one_job_with_wrong_rules_does_not_stop_the_others(submit, cell, ann) -> None:
    job = submit(HORIZONTAL)
    other = world.submit(ann, cell, a_file(HORIZONTAL, name="other"))
    turn(job)
    wrong = {"horizontal": HORIZONTAL["horizontal"] | {"later": 1}}  # a newer version of the software has this field
    JobSpec.objects.filter(job=other).update(spec=updates.spec_of(again(other)).to_json() | {"autoscale": wrong})
    JobAutoscaling.objects.filter(job=other).update(version=0)
    loaded(job, 900)
    assert turn(job) == 1
    JobSpec.objects.filter(job=other).update(spec=world.read(cell, a_file(HORIZONTAL, name="other")).to_json())
    zone = {"schedule": [{"at": "@daily", "tasks": 2, "time_zone": "Mars/Phobos"}]}
    rules = {"horizontal": HORIZONTAL["horizontal"] | zone}
    JobAutoscaling.objects.filter(job=other).update(rules=rules, horizontal="auto", version=1, schedule_at=None)
    JobAutoscaling.objects.filter(job=job).update(wanted_tasks=None)
    turn(job)
    assert JobAutoscaling.objects.get(job=job).wanted_tasks is not None


def test_the_lag_grows_while_turns_fail(submit, cell, monkeypatch) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    CellAutoscaling.objects.update(finished_at=timezone.now() - dt.timedelta(hours=1))
    Job.objects.update(created_at=timezone.now() - dt.timedelta(hours=2))

    def fails(cell_id: int, now: dt.datetime) -> list[object]:
        raise RuntimeError("wrong")

    monkeypatch.setattr(turns, "tasks_recommend", fails)
    turn(job)
    assert turns.lag_s()[cell.id] > 3000
    monkeypatch.undo()
    turn(job)
    assert turns.lag_s()[cell.id] < 3000


def test_a_turn_that_another_process_has_claimed_is_not_taken(submit, cell) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    soon = timezone.now() + dt.timedelta(seconds=30)
    CellAutoscaling.objects.update(turned_at=timezone.now() - dt.timedelta(minutes=1), claimed_until=soon)
    assert not autoscale(cell.id).taken
    CellAutoscaling.objects.update(claimed_until=timezone.now() - dt.timedelta(seconds=1))
    assert autoscale(cell.id).taken


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


def test_limits_do_not_rise_above_the_largest_machine(submit, machine) -> None:
    job = submit({"vertical": VERTICAL["vertical"] | {"mode": "recommend"}})
    used(job, ram=4 * machine.capacity[1])
    turn(job)
    assert JobAutoscaling.objects.get(job=job).wanted_ram <= max(machine.capacity[1], 1024 * MIB)


def test_the_row_follows_a_new_version_before_the_job_is_scaled(submit, ann, cell) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    loaded(job, 900)
    JobSpec.objects.filter(job=job).update(actor="someone")
    Job.objects.filter(pk=job.pk).update(spec_version=1)
    JobAutoscaling.objects.filter(job=job).update(version=1)
    file = a_file(HORIZONTAL, labels={"a": "b"})
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    assert turn(job) == 1, "the row follows the new version first"
    assert values(job)[0] == 6
    assert updates.spec_of(Job.objects.select_related("cell").get(pk=job.pk)).labels == {"a": "b"}


def test_a_turn_writes_nothing_over_a_newer_version(submit) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    row = tasks_turn._Row(*query(tasks_turn._ROWS, [job.cell_id])[0])
    decision = ScaleDecision(6, 3, ScaleState(needed=5.0, needed_at=timezone.now().timestamp()))
    row.version -= 1
    tasks_turn._store([(row, decision, False)])
    assert JobAutoscaling.objects.get(job=job).wanted_tasks == 3
    row.version += 1
    tasks_turn._store([(row, decision, False)])
    assert JobAutoscaling.objects.get(job=job).wanted_tasks == 6


def test_missing_rows_are_created_and_those_of_ended_jobs_deleted(submit, cell, ann) -> None:
    job, other = submit(VERTICAL), world.submit(ann, cell, a_file(HORIZONTAL, name="other"))
    JobAutoscaling.objects.filter(job=job).delete()
    job_kill(principal=ann, job=other)
    assert rows_repair(cell.id) == 1
    assert list(JobAutoscaling.objects.values_list("job_id", flat=True)) == [job.id]


def test_rules_that_are_removed_end_the_scaling(submit, ann, cell) -> None:
    job = submit(VERTICAL)
    turn(job)
    file = a_file({})
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    turn(job)
    assert not JobAutoscaling.objects.exists()


def test_a_turn_is_taken_once_in_its_period(submit, cell) -> None:
    submit(VERTICAL)
    assert autoscale(cell.id).taken
    assert not autoscale(cell.id).taken


def test_accepting_needs_a_recommendation(submit, ann) -> None:
    job = submit({"vertical": {}})
    turn(job)
    with pytest.raises(Conflict) as error:
        accepted_spec(Job.objects.select_related("cell", "tenant").get(pk=job.pk))
    assert error.value.code == "no-recommendation"


class TestDoors:
    @pytest.fixture
    def client(self, tenant):
        return world.bearer(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))

    def path(self, job: Job, verb: str = "autoscaling/") -> str:
        return f"/api/v1/cells/{job.cell.name}/jobs/ubar/{job.name}/{verb}"

    def test_a_file_from_git_keeps_the_number_of_tasks(self, submit, client) -> None:
        job = submit(HORIZONTAL)
        loaded(job, 900)
        turn(job)
        answer = client.put(self.path(job, ""), a_file(HORIZONTAL), content_type="application/json").json()
        assert answer["outcome"] == "unchanged"
        plan = client.post(self.path(job, "plan/"), a_file(HORIZONTAL), content_type="application/json").json()
        assert plan["outcome"] == "unchanged"
        answer = client.post(f"/api/v1/cells/{job.cell.name}/jobs/", a_file(HORIZONTAL), "application/json").json()
        assert answer["outcome"] == "unchanged"
        other = a_file(HORIZONTAL, labels={"a": "b"})
        assert client.put(self.path(job, ""), other, content_type="application/json").json()["outcome"] == "updated"
        assert values(job)[0] == 6
        answer = client.put(self.path(job, ""), a_file(HORIZONTAL, tasks=2), content_type="application/json").json()
        assert answer["outcome"] == "updated"
        assert values(job)[0] == 2, "a number that has changed in the file wins"

    def test_a_repeated_submission_with_a_key_gets_the_scaled_job(self, cell, client, machine) -> None:
        def submit() -> Any:
            path, key = f"/api/v1/cells/{cell.name}/jobs/", {"Idempotency-Key": "once"}
            return client.post(path, a_file(HORIZONTAL), "application/json", headers=key).json()

        assert submit()["outcome"] == "submitted"
        job = Job.objects.get()
        world.bring_up(job, machine)
        loaded(job, 900)
        assert turn(job) == 1
        assert submit()["outcome"] == "submitted"

    def test_a_file_from_git_keeps_the_limits(self, submit, client) -> None:
        job = submit(VERTICAL)
        used(job)
        turn(job)
        answer = client.put(self.path(job, ""), a_file(VERTICAL), content_type="application/json").json()
        assert answer["outcome"] == "unchanged"
        off = a_file({"vertical": {"mode": "off"}})
        assert client.put(self.path(job, ""), off, content_type="application/json").json()["outcome"] == "updated"
        assert values(job) == (3, 1000, 1024 * MIB), "without the autoscaler, the values of the file apply"

    def test_a_recommendation_is_shown_and_accepted(self, submit, client) -> None:
        job = submit({"vertical": {"history_s": 3600}})
        used(job)
        turn(job)
        found = client.get(self.path(job)).json()
        assert (found["vertical"], found["horizontal"], found["available"]) == ("recommend", "off", True)
        assert found["saves_per_month"] > 0
        rehearsed = client.post(self.path(job, "autoscaling/accept/?dry_run=true")).json()
        assert (rehearsed["outcome"], values(job)[1]) == ("updated", 1000)
        answer = client.post(self.path(job, "autoscaling/accept/")).json()
        assert answer["tasks"]["in_place"] == 3
        assert values(job)[1] == found["wanted"]["cpu"]

    def test_a_simulation_uses_the_recorded_usage(self, submit, client) -> None:
        job = submit({})
        used(job, hours=6)
        found = client.post(self.path(job, "autoscaling/simulate/"), {}, content_type="application/json").json()
        assert found["horizontal"] is None
        vertical = found["vertical"]
        assert vertical["slack"]["cpu"] == pytest.approx(0.8)
        assert vertical["slack_after"]["cpu"] < 0.7
        assert vertical["oom_task_days"] == 0
        assert vertical["saves_per_month"] > 0
        rules = {"autoscale": {"horizontal": {"max": 5, "cpu": 0.5}}}
        found = client.post(self.path(job, "autoscaling/simulate/"), rules, content_type="application/json").json()
        assert found["vertical"] is None
        assert found["horizontal"]["tasks_after"] < found["horizontal"]["tasks"]

    def test_a_simulation_with_wrong_rules_names_the_field(self, submit, client) -> None:
        job = submit({})
        used(job)
        rules = {"autoscale": {"horizontal": {"max": 5}}}
        answer = client.post(self.path(job, "autoscaling/simulate/"), rules, content_type="application/json")
        assert answer.status_code == 422
        assert "autoscale.horizontal" in answer.json()["fields"]

    def test_a_simulation_without_usage_is_rejected(self, submit, client) -> None:
        job = submit({})
        answer = client.post(self.path(job, "autoscaling/simulate/"), {}, content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (409, "no-usage")

    def test_other_tenants_see_nothing(self, submit) -> None:
        job = submit(VERTICAL)
        eve = world.bearer(world.a_user("eve", tenant=rows.a_tenant("other")))
        for verb in ("autoscaling/", "autoscaling/accept/", "autoscaling/simulate/"):
            method = eve.get if verb == "autoscaling/" else eve.post
            assert method(self.path(job, verb)).status_code == 404


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


class TestPage:
    def test_the_page_of_the_job_shows_and_sets_the_recommendation(self, submit, tenant) -> None:
        job = submit({"vertical": {"history_s": 3600}})
        used(job)
        turn(job)
        client = Client()
        client.force_login(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))
        url = f"/jobs/{job.cell.name}/ubar/{job.name}/"
        shown = client.get(url).content.decode()
        assert "Recommended limits of a task:" in shown
        assert "Saved per 30 days" in shown
        revision = revision_of(Job.objects.get(pk=job.pk))
        wanted = recommendation_of(Job.objects.select_related("cell").get(pk=job.pk)).wanted
        answer = client.post(f"{url}accept/", {"uid": job.uid, "revision": revision})
        assert answer.status_code == 302
        assert values(job) == wanted
        assert "Nothing else than the present values" in client.get(url).content.decode()

    def test_the_page_for_editing_keeps_what_the_autoscaler_sets_meanwhile(self, submit, tenant) -> None:
        job = submit(HORIZONTAL)
        client = Client()
        client.force_login(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))
        url = f"/jobs/{job.cell.name}/ubar/{job.name}/update/"
        loaded(job, 900)
        assert turn(job) == 1

        def edit(**changes: Any) -> int:
            text = yaml.safe_dump(a_file(HORIZONTAL, **changes))
            form = {"uid": job.uid, "version": "1", "text": text, "do": "submit"}
            return client.post(url, form).status_code

        assert edit(labels={"a": "b"}) == 302
        assert updates.spec_of(again(job)).labels == {"a": "b"}
        assert values(job)[0] == 6
        assert edit(labels={"a": "c"}) == 409, "a user has changed it meanwhile"

    def test_the_page_of_another_job_has_no_panel(self, cell, ann, tenant) -> None:
        job = world.submit(ann, cell, world.a_file())
        client = Client()
        client.force_login(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))
        shown = client.get(f"/jobs/{job.cell.name}/ubar/{job.name}/").content.decode()
        assert 'id="autoscaling"' not in shown


class TestCommands:
    @pytest.fixture
    def cli(self, shared_portal, tenant, tmp_path) -> cli_world.Cli:
        return cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)

    def test_a_recommendation_is_simulated_shown_and_accepted(self, submit, cli) -> None:
        job = submit({"vertical": {"history_s": 3600}, "horizontal": {"mode": "recommend", "max": 6, "cpu": 0.5}})
        used(job)
        simulated = cli.out("autoscale", "simulate", "web")
        assert "on 0 of 3 task-days" in simulated or "on 0 of 6 task-days" in simulated
        loaded(job, 900)
        turn(job)
        shown = cli.out("autoscale", "show", "web")
        assert "limits recommend, number of tasks recommend" in shown
        assert "recommended:  6 tasks" in shown
        assert "5.4 tasks are needed" in shown
        assert "Dry run" in cli.out("autoscale", "accept", "web", "--dry-run")
        assert "3 tasks: 3-5" in cli.out("autoscale", "accept", "web")
        assert values(job)[0] == 6
