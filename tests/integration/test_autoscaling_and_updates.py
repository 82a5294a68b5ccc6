"""Tests of the autoscaler together with updates, undo and rollback by users, on real PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from quota.models import Notice
from quota.vocabulary.permissions import Principal
from scheduling.autoscaling.selectors import recommendation_of
from scheduling.jobs import update_gates, updates
from scheduling.jobs.actions import autoscaled
from scheduling.jobs.actions.autoscaled import AUTOSCALER, FILE
from scheduling.jobs.actions.pause import update_pause, update_resume
from scheduling.jobs.actions.restart import job_restart
from scheduling.jobs.notices.event_notices import events_notify
from scheduling.jobs.rollouts.gate_rules import Watched
from scheduling.jobs.rollouts.rollout import update_end
from scheduling.journal import journal
from scheduling.models import Job, JobAutoscaling, Machine, Task, Update
from tests.integration import world
from tests.integration.autoscaling_world import (
    HORIZONTAL,
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


def change(job: Job, principal: Principal, rules: dict[str, Any], **changes: Any) -> Update:
    """Update a job to a file with another command, so that its tasks restart. Return the open update."""
    file = a_file(rules, **changes)
    file["task"] = file["task"] | {"command": ["other"]}
    spec = world.read(job.cell, file)
    done = updates.job_update(principal=principal, job=again(job), job_spec=spec, later=True, source=FILE)
    assert done.update is not None
    return done.update


def test_the_autoscaler_does_not_go_on_with_an_update_that_was_stopped(submit, ann, machine) -> None:
    job = submit(VERTICAL)
    used(job)
    update = change(job, ann, VERTICAL, update={"max_down": 1, "max_disruptions": 1})
    updates.updates_advance(job.cell_id)
    world.bring_up(again(job), machine)
    updates.updates_advance(job.cell_id)
    update.refresh_from_db()
    assert update.state == Update.STOPPED
    assert turn(job) == 0
    row = recommendation_of(again(job)).row
    assert row is not None
    assert row.limited_code == "update-stopped"
    assert "undo" in row.limited_detail
    assert turn(job) == 0
    assert JobAutoscaling.objects.get(job=job).retry_at == row.retry_at, "it was not tried again"
    updates.job_undo(principal=ann, job=again(job))
    updates.updates_advance(job.cell_id)
    world.bring_up(again(job), machine)
    updates.updates_advance(job.cell_id)
    later(job, 3600, "limits_held_until", "limits_at")
    assert turn(job) == 1, "a person has looked at it"


def test_the_autoscaler_goes_on_at_once_after_a_restart_by_a_person(submit, ann, machine) -> None:
    job = submit(HORIZONTAL)
    update = change(job, ann, HORIZONTAL, update={"max_down": 1, "max_disruptions": 1})
    updates.updates_advance(job.cell_id)
    world.bring_up(again(job), machine)
    updates.updates_advance(job.cell_id)
    update.refresh_from_db()
    assert update.state == Update.STOPPED
    later(job, 3600, "tasks_held_until")
    loaded(job, 900)
    assert turn(job) == 0
    assert JobAutoscaling.objects.get(job=job).tasks_limited_code == "update-stopped"
    job_restart(principal=ann, job=again(job), ranges=[(0, 0)])
    assert turn(job) == 0, "the restart is open"
    Update.objects.filter(job=job, state=Update.OPEN).update(state=Update.DONE)
    loaded(job, 900)
    assert turn(job) == 1
    assert values(job)[0] > 3


def test_scaling_goes_on_without_disruptions_after_an_own_update_has_used_them_up(submit, cell, machine) -> None:
    job = submit(HORIZONTAL)
    assert used_up(job, machine).disruptions == 1
    events_notify(cell)
    assert Notice.objects.filter(kind="job.update-stopped").count() == 1
    old = set(Task.objects.filter(job=job, spec_version=1).values_list("id", "incarnation"))
    assert len(old) == 2
    loaded(job, 900)
    assert turn(job) == 1
    assert values(job)[0] == 6
    world.bring_up(again(job), machine)
    updates.updates_advance(job.cell_id)
    assert set(Task.objects.filter(job=job, spec_version=1).values_list("id", "incarnation")) == old
    newest = Update.objects.filter(job=job).latest("id")
    assert (newest.state, newest.disruptions) == (Update.STOPPED, 1)
    events_notify(cell)
    assert Notice.objects.filter(kind="job.update-stopped").count() == 1, "the tenant knows it"


def used_up(job: Job, machine: Machine) -> Update:
    """Let an update by the autoscaler stop after its last disruption."""
    update = change(job, AUTOSCALER, HORIZONTAL, update={"max_down": 1, "max_disruptions": 1})
    updates.updates_advance(job.cell_id)
    world.bring_up(again(job), machine)
    updates.updates_advance(job.cell_id)
    update.refresh_from_db()
    assert update.state == Update.STOPPED
    return update


def test_an_own_update_whose_tasks_crash_waits_for_a_person(submit, machine) -> None:
    job = submit(HORIZONTAL)
    used_up(job, machine)
    crashing = Task.objects.filter(job=job, spec_version=2)
    crashing.update(up=False, restarts=3)
    loaded(job, 900)
    assert turn(job) == 0
    row = JobAutoscaling.objects.get(job=job)
    assert row.tasks_limited_code == "update-stopped"
    assert "1 tasks crash again and again" in row.tasks_limited_detail
    crashing.update(up=True, restarts=0)


def test_tenants_are_notified_if_tasks_crash_after_disruptions_were_used_up(submit, cell, machine) -> None:
    job = submit(HORIZONTAL)
    first = used_up(job, machine)
    events_notify(cell)
    crash = "1 tasks of version 3 crash again and again; undo the update, or update again"
    with journal.write(cell.id, AUTOSCALER) as entry:
        row = {"job": job, "from_version": 2, "to_version": 2, "disruptions": 1, "max_disruptions": 1}
        second = Update.objects.create(actor=AUTOSCALER.name, **row)
        update_end(entry, second, Update.STOPPED, crash)
    assert second.id > first.id
    events_notify(cell)
    assert Notice.objects.filter(kind="job.update-stopped").count() == 2


def test_a_demotion_after_a_used_up_update_does_not_end_the_scaling(submit, cell, machine) -> None:
    job = submit(HORIZONTAL)
    used_up(job, machine)
    row = {"job": job, "from_version": 2, "to_version": 2, "disruptions": 1, "max_disruptions": 1}
    Update.objects.create(actor="system:lapses", state=Update.STOPPED, **row)
    loaded(job, 900)
    assert turn(job) == 1
    assert Update.objects.filter(job=job).latest("id").disruptions == 1


def test_a_pause_of_an_update_by_the_autoscaler_stays(submit, ann) -> None:
    job = submit(VERTICAL)
    used(job)
    update = change(job, AUTOSCALER, VERTICAL)
    update_pause(principal=ann, job=again(job))
    assert turn(job) == 0
    update.refresh_from_db()
    assert (update.state, update.paused_at is not None) == (Update.OPEN, True)
    update_resume(principal=ann, job=again(job))
    assert turn(job) == 1


def test_updates_by_the_autoscaler_share_a_number_of_disruptions(submit) -> None:
    job = submit(HORIZONTAL)
    update = change(job, AUTOSCALER, HORIZONTAL, update={"max_down": 1, "max_disruptions": 2})
    updates.updates_advance(job.cell_id)
    update.refresh_from_db()
    assert (update.state, update.disruptions) == (Update.OPEN, 1)
    loaded(job, 2000)
    assert turn(job) == 1
    assert values(job)[0] == 6
    newest = Update.objects.filter(job=job).latest("id")
    assert newest.id != update.id
    assert newest.disruptions >= 1


def test_a_rollback_keeps_what_the_autoscaler_has_set(submit, ann) -> None:
    job = submit(HORIZONTAL)
    loaded(job, 900)
    assert turn(job) == 1
    Update.objects.filter(job=job).update(state=Update.SUPERSEDED)  # it was still open when the user deployed
    update = change(job, ann, HORIZONTAL, update={"rollback": True})
    good = autoscaled.undone(again(job), updates.spec_of(again(job), 1), 1)
    assert good.tasks == 6
    assert good.base.command != ("other",)
    assert update.rollback
    update_gates._roll_back(update_gates._Found(update.id, a_watched(), 0, settled=False))
    assert values(job)[0] == 6
    update.refresh_from_db()
    assert update.state == Update.ROLLED_BACK


def a_watched() -> Watched:
    return Watched(0, by_hand=False, ready=False, fails=True, late=False, rollback=True, paused=False)


def test_an_undo_after_a_rollback_and_a_change_by_the_autoscaler_has_gates(submit, ann) -> None:
    job = submit(HORIZONTAL)
    update = change(job, ann, HORIZONTAL, update={"rollback": True})
    update_gates._roll_back(update_gates._Found(update.id, a_watched(), 0, settled=False))
    updates.updates_advance(job.cell_id)
    loaded(job, 900)
    later(job, 3600, "tasks_held_until")
    assert turn(job) == 1
    updates.job_undo(principal=ann, job=again(job))
    newest = Update.objects.filter(job=job).latest("id")
    assert (newest.undo, newest.rollback, values(job)[0]) == (True, True, 6)


def test_an_undo_returns_within_the_bounds_of_the_earlier_spec(submit, ann) -> None:
    job = submit({})
    change(job, ann, HORIZONTAL)
    Update.objects.filter(job=job).update(state=Update.SUPERSEDED)
    loaded(job, 900)
    assert turn(job) == 1
    updates.job_undo(principal=ann, job=again(job))
    assert values(job)[0] == 3, "nothing scales the job now"


def test_an_undo_keeps_what_the_autoscaler_changes_at_the_same_time(submit, ann, monkeypatch) -> None:
    job = submit(HORIZONTAL)
    change(job, ann, HORIZONTAL)
    Update.objects.filter(job=job).update(state=Update.SUPERSEDED)
    read = updates.spec_before

    def slow(of: Job) -> Any:
        found = read(of)
        if values(job)[0] == 3:
            loaded(job, 900)
            assert turn(job) == 1
        return found

    monkeypatch.setattr(updates, "spec_before", slow)
    updates.job_undo(principal=ann, job=again(job))
    assert values(job)[0] == 6
