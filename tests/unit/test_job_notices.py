"""Tests of the rules and texts of notices about jobs, without a database."""

from __future__ import annotations

import datetime as dt

import pytest

from quota.vocabulary.bands import DEFAULT_BANDS
from scheduling.core.vocabulary.job_health import Condition
from scheduling.jobs.notices.condition_rules import (
    ConditionKey,
    Decision,
    KnownCondition,
    PresentConditions,
    decide,
    longest_pending_s,
)
from scheduling.jobs.notices.notice_texts import TEXTS, format_notice, link

NOW = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)
FAILING = ConditionKey(1, Condition.FAILING)
LOOPING = ConditionKey(1, Condition.CRASH_LOOPING)


def ago(seconds: float) -> dt.datetime:
    return NOW - dt.timedelta(seconds=seconds)


def present(*keys: ConditionKey, unsettled=(), healthy=()) -> PresentConditions:
    return PresentConditions(dict.fromkeys(keys, NOW), frozenset(unsettled), frozenset(healthy))


def decided(known: dict[ConditionKey, KnownCondition], now_present: PresentConditions) -> Decision:
    return decide(known, now_present, now=NOW)


def test_a_new_condition_waits_for_its_patience() -> None:
    assert decided({}, present(FAILING)) == Decision(new=[FAILING])
    assert not decided({FAILING: KnownCondition(ago(119))}, present(FAILING))
    assert decided({FAILING: KnownCondition(ago(120))}, present(FAILING)) == Decision(due=[FAILING])
    assert not decided({FAILING: KnownCondition(ago(900), told=True)}, present(FAILING))


@pytest.mark.parametrize("condition", [Condition.PENDING, Condition.DEADLINE_AT_RISK])
def test_a_condition_without_patience_is_due_when_it_is_found(condition: Condition) -> None:
    key = ConditionKey(7, condition)
    assert decided({}, present(key)) == Decision(new=[key], due=[key])


def test_a_condition_that_was_short_is_forgotten_without_a_notice() -> None:
    healthy = present(unsettled=[FAILING], healthy=[1])
    assert decided({FAILING: KnownCondition(ago(60))}, healthy) == Decision(over=[FAILING])


def test_a_condition_that_may_come_back_is_kept_until_the_job_is_healthy() -> None:
    known = {FAILING: KnownCondition(ago(300), told=True)}
    assert not decided(known, present(unsettled=[FAILING]))
    assert decided(known, present(healthy=[1])) == Decision(over=[FAILING], recovered=[FAILING])
    assert decided(known, present()) == Decision(over=[FAILING]), "the job has ended"


def test_the_tenant_of_a_failing_job_knows_that_tasks_crash() -> None:
    known = {FAILING: KnownCondition(ago(700), told=True), LOOPING: KnownCondition(ago(700))}
    assert not decided(known, present(FAILING, LOOPING))
    assert decided({LOOPING: KnownCondition(ago(700))}, present(LOOPING)) == Decision(due=[LOOPING])


@pytest.mark.parametrize(("priority", "longest_s"), [(0, None), (1, 3600), (119, 3600), (120, 900), (450, 900)])
def test_the_longest_time_of_a_pending_task_depends_on_its_band(priority: int, longest_s: float | None) -> None:
    assert longest_pending_s(priority, DEFAULT_BANDS) == longest_s


def test_a_priority_without_a_band_is_not_prod() -> None:
    assert longest_pending_s(200, ()) == 3600


def test_a_notice_about_one_job_names_it_everywhere() -> None:
    subject, text = format_notice("job.failed", cell="cc", jobs=["web"], reasons=["1 of 3 tasks failed."])
    assert subject == "Job web in cell cc has failed"
    assert text.startswith("1 of 3 tasks failed. Run `borgctl why web`")
    assert link("job.failed", cell="cc", tenant="ubar", jobs=["web"]) == "/jobs/cc/ubar/web/"


def test_a_notice_about_many_jobs_names_the_first_ones() -> None:
    names = [f"j{number}" for number in range(12)]
    subject, text = format_notice("job.failed", cell="cc", jobs=names, reasons=[f"reason {n}." for n in range(10)])
    assert subject == "12 jobs in cell cc have failed"
    lines = text.splitlines()
    assert (lines[0], lines[9], lines[10]) == ("- j0: reason 0.", "- j9: reason 9.", "and 2 more")
    assert "`borgctl retry JOB`" in lines[11]
    assert link("job.failed", cell="cc", tenant="ubar", jobs=names) == "/jobs/?tenant=ubar&cell=cc&state=dead"


def test_a_notice_without_reasons_lists_the_names() -> None:
    subject, text = format_notice("job.recovered", cell="cc", jobs=["a", "b"], reasons=["", ""])
    assert (subject, text) == ("2 jobs in cell cc are healthy again", "All live tasks are up.\na, b")


@pytest.mark.parametrize("kind", TEXTS)
def test_each_text_can_be_filled_in(kind: str) -> None:
    for names in (["a"], ["a", "b"]):
        subject, text = format_notice(kind, cell="cc", jobs=names, reasons=["Reason."] * len(names))
        assert "%(" not in subject + text
        assert "cc" in subject
