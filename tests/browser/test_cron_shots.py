"""Tests that no page of cron jobs is wider than the screen. With SHOTS=1, they save pictures."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from quota.vocabulary.permissions import Role
from scheduling.cron import cron_jobs
from scheduling.models import CronRun
from tests.browser.conftest import sign_in
from tests.browser.looks import look_at
from tests.integration import cron_rows
from tests.integration import world as people

PAGES = {
    "crons": "/cron/",
    "cron": "/cron/cc/ubar/nightly-report/",
    "cron-suspended": "/cron/cc/ubar/replaced/",
    "cron-deletion": "/cron/cc/ubar/nightly-report/",
    "crons-empty": "/cron/?q=nothing",
}


@pytest.fixture
def furnished(world):
    who = people.principal("ann", tenant=world.tenant, role=Role.OPERATOR)
    row = cron_rows.apply(
        who, world.cell, "nightly-report", schedule="30 2 * * *", time_zone="Europe/Berlin", overlap="forbid"
    )
    cron_rows.apply(who, world.cell, "a-name-that-is-as-long-as-names-may-be-xxxxx", schedule="*/5 8-17 * * MON-FRI")
    replaced = cron_rows.apply(who, world.cell, "replaced", overlap="replace")
    cron_jobs.cron_run_now(principal=who, cron_job=row)
    cron_jobs.cron_run_now(principal=who, cron_job=replaced)
    cron_jobs.cron_suspend(principal=who, cron_job=replaced)
    midnight = timezone.now().replace(hour=1, minute=30, second=0, microsecond=0)
    details = {
        "submitted": "",
        "skipped": "the run nightly-report-20261127t0130z is still live, and the overlap policy of cron job"
        " nightly-report is forbid; kill that run, or choose allow or replace",
        "missed": "the run was due 7,200 s ago, and catch_up_s allows 600 s",
        "rejected": "tenant ubar has no quota in the band production; buy quota, or lower the priority",
    }
    for number in range(1, 9):
        outcome = list(details)[number % 4]
        due_at = midnight - dt.timedelta(days=number)
        name = f"nightly-report-{due_at:%Y%m%dt%H%Mz}" if outcome == "submitted" else ""
        CronRun.objects.create(
            cron_job=row, due_at=due_at, outcome=outcome, job_name=name, detail=details[outcome], at=due_at
        )


def test_every_page_of_cron_jobs_fits_its_screen(furnished, page) -> None:
    sign_in(page, "operator")
    for name, path in PAGES.items():
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        if name == "cron-deletion":
            page.get_by_text("Delete the cron job…").click()
        look_at(page, name)
