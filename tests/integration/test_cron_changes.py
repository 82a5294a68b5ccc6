"""Tests of changes of cron jobs: dropped due times, owners and limits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quota.models import Membership
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Role
from scheduling.cron import cron_jobs
from scheduling.models import CronJob, CronRun, Event
from tests.integration import cron_rows, world

pytestmark = pytest.mark.django_db(transaction=True)


def test_due_times_that_a_change_drops_are_recorded_as_missed(cell, ann) -> None:
    suspended, changed = cron_rows.apply(ann, cell), cron_rows.apply(ann, cell, "hourly")
    later = cron_rows.apply(ann, cell, "later")
    cron_rows.due(suspended, ago_s=150)
    cron_rows.due(changed, ago_s=1)
    assert cron_jobs.cron_suspend(principal=ann, cron_job=suspended).next_at is None
    cron_rows.apply(ann, cell, "hourly", schedule="0 * * * *")
    cron_rows.apply(ann, cell, "later", schedule="0 * * * *")
    assert cron_rows.runs(suspended) == cron_rows.runs(changed) == [("missed", "cron-changed")]
    assert cron_rows.runs(later) == []
    (run,) = CronRun.objects.filter(cron_job=suspended)
    assert re.match(
        "cron job nightly has no run for [34] due times, because it was suspended by ann at .* UTC, before a run",
        run.detail,
    )
    assert "; start a run with `borgctl cron run nightly`" in run.detail
    assert "for 1 due time, because its schedule was changed by ann at" in CronRun.objects.get(cron_job=changed).detail
    assert Event.objects.filter(kind="cron.skipped").count() == 2


def test_a_change_does_not_write_the_name_of_the_owner_again(cell, ann) -> None:
    """An erasure changes this name without the lock of the cell, so an old name must not be written over it."""
    row = cron_rows.apply(ann, cell)
    with CaptureQueriesContext(connection) as queries:
        cron_jobs.cron_suspend(principal=ann, cron_job=row)
        cron_jobs.cron_resume(principal=ann, cron_job=row)
    changes = [query["sql"] for query in queries if query["sql"].startswith('UPDATE "scheduling_cronjob"')]
    assert len(changes) == 2
    assert not any("owner_name" in change for change in changes)


def test_an_equal_file_keeps_the_owner_who_may_submit_the_job(cell, ann, tenant) -> None:
    bob = world.principal("bob", tenant=tenant, role=Role.OPERATOR)
    row = cron_rows.apply(ann, cell)

    def applied(**changes: Any) -> tuple[str, int]:
        spec = cron_jobs.cron_spec_for(principal=bob, cell=cell, file=cron_rows.a_cron_file(**changes))
        outcome = cron_jobs.cron_apply(principal=bob, cell=cell, spec=spec).outcome
        return outcome, CronJob.objects.get().owner_id

    assert applied() == ("unchanged", ann.user_id)
    Membership.objects.filter(user_id=ann.user_id).delete()  # she leaves the team
    assert applied() == ("updated", bob.user_id)
    CronJob.objects.update(owner_id=None)
    assert applied() == ("updated", bob.user_id)
    cron_rows.apply(world.principal("cat", tenant=tenant, role=Role.OPERATOR), cell, schedule="0 5 * * *")
    assert applied(schedule="0 6 * * *") == ("updated", bob.user_id)
    assert CronJob.objects.get().version == row.version + 4


def test_the_number_of_cron_jobs_is_limited(cell, ann, settings) -> None:
    settings.BORG_MAX_CRON_JOBS_PER_TENANT = 1
    cron_rows.apply(ann, cell)
    with pytest.raises(Rejected, match="cannot create cron job hourly: cell cc has 1 cron jobs of tenant ubar"):
        cron_rows.apply(ann, cell, "hourly")
