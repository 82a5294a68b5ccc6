"""Tests of which pending times and evictions break the promise of a cell."""

from __future__ import annotations

import datetime as dt

import pytest

from quota.billing.credits.breach_rows import MOST_NAMED, BreachRow, merge
from quota.vocabulary.errors import Rejected
from scheduling.core.vocabulary.reasons import ReasonCode, RuledOut, Why
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.policy.cell_settings import CellSettings, load
from scheduling.promises.promise_rules import (
    CELL_CAUSES,
    CELL_REASONS,
    by_hour,
    counted_tasks,
    lacks_capacity,
    over,
    promise_of,
    sentences,
)

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def why(code: str, *ruled_out: str, never: bool = False) -> Why:
    out = tuple(RuledOut(ReasonCode(one), "", 1) for one in (ruled_out or (code,)))
    return Why(tasks=((1, 2),), machines=4, code=code, ruled_out=out, never=never)


@pytest.mark.parametrize("code", sorted(CELL_REASONS))
def test_missing_capacity_counts(code) -> None:
    assert lacks_capacity([why(code)]) == code


@pytest.mark.parametrize("code", sorted(set(ReasonCode) - CELL_REASONS))
def test_reasons_of_the_job_do_not_count(code) -> None:
    assert lacks_capacity([why(code)]) == ""
    assert lacks_capacity([why("resource", "resource", code)]) == "", "the job itself excludes some machines"
    assert lacks_capacity([why("resource"), why(code)]) == "", "it is unknown to which task a verdict belongs"


def test_unknown_reasons_and_tasks_that_never_fit_do_not_count() -> None:
    assert lacks_capacity([]) == ""
    assert lacks_capacity([Why(tasks=((1, 2),), machines=4)]) == ""
    assert lacks_capacity([why("resource", never=True)]) == ""


def test_no_more_tasks_count_than_were_examined_and_may_run() -> None:
    whys = [why("resource"), Why(tasks=((1, 3), (2, 40)), machines=4, code="cores")]
    assert counted_tasks(whys, 1, max_running=0, running=7) == 5
    assert counted_tasks(whys, 1, max_running=10, running=9) == 1
    assert counted_tasks(whys, 1, max_running=10, running=12) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("promise_start_s", 1e12),
        ("promise_share", 0.0),
        ("promise_share", 0.0001),
        ("promise_share", 1.5),
        ("promise_evictions", 1.5),
        ("promise_evictions", -1.0),
        ("promise_eviction_hours", 1000.0),
    ],
)
def test_a_promise_that_cannot_be_kept_or_read_is_rejected(name, value) -> None:
    with pytest.raises(Rejected) as error:
        load({name: value})
    assert f"settings.{name}" in error.value.fields


def test_every_cause_is_decided() -> None:
    """Check that a new cause of evictions is not forgotten."""
    own = {EvictionCause.UPDATE, EvictionCause.FAILURE, EvictionCause.OTHER, EvictionCause.OUT_OF_RESOURCES}
    assert set(CELL_CAUSES) == {cause.value for cause in set(EvictionCause) - own}


def test_a_time_is_split_at_full_hours() -> None:
    begin, end = NOON - dt.timedelta(minutes=10), NOON + dt.timedelta(minutes=61)
    parts = list(by_hour(begin, end))
    assert [(hour.hour, until - since) for hour, since, until in parts] == [
        (11, dt.timedelta(minutes=10)),
        (12, dt.timedelta(hours=1)),
        (13, dt.timedelta(minutes=1)),
    ]
    assert list(by_hour(end, begin)) == []
    assert over((1000, 5, 0, 0, 0, 1, 7), dt.timedelta(seconds=1.5)) == (1500, 7, 0, 0, 0, 1)


def test_the_promise_is_published_in_sentences() -> None:
    assert not promise_of(CellSettings())
    assert sentences(promise_of(CellSettings())) == []
    start, evictions = sentences(promise_of(CellSettings(promise_start_s=300, promise_evictions=2, promise_share=0.5)))
    assert "within 5 minutes" in start
    assert "50 %" in start
    assert "at most 2 times in 30 days" in evictions


def row(first: int, last: int, *, since: int = 0, until: int = 60) -> BreachRow:
    evidence = [{"task": n, "from": f"{since}", "until": f"{until}"} for n in range(first, last)]
    return BreachRow(
        1, "production", "1" * 32, "web", "pending", "resource", NOON, {}, last - first, 60.0, 0, (1, 2), evidence
    )


def test_reports_of_one_hour_become_one_row() -> None:
    merged = merge(row(0, 3), row(1, 3, since=60, until=120))
    assert (merged.tasks, merged.task_seconds, merged.affected) == (3, 120.0, (2, 4))
    assert merged.evidence == [
        {"task": 0, "from": "0", "until": "60"},
        {"task": 1, "from": "0", "until": "120"},
        {"task": 2, "from": "0", "until": "120"},
    ]
    again = merge(merged, row(0, 1, since=180, until=240))
    assert again.evidence[-1] == {"task": 0, "from": "180", "until": "240"}


def test_the_evidence_has_a_bounded_size() -> None:
    merged = row(0, 2)
    for n in range(3 * MOST_NAMED):
        merged = merge(merged, row(0, 1, since=2 * n, until=2 * n + 1))
    assert len(merged.evidence) == MOST_NAMED
    assert merged.task_seconds == 60.0 * (3 * MOST_NAMED + 1)


def test_evictions_add_up() -> None:
    one = row(0, 0)._replace(
        kind="evictions", task_seconds=0.0, evictions=1, tasks=1, evidence=[{"task": 4, "at": "1"}]
    )
    two = merge(one, one._replace(evidence=[{"task": 4, "at": "2"}]))
    assert (two.tasks, two.evictions, [entry["at"] for entry in two.evidence]) == (2, 2, ["1", "2"])
