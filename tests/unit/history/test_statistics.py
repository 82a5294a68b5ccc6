"""Tests of statistics of the journal, with values computed by hand."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.events import Event
from scheduling.core.vocabulary.requirement import Group, Requirement
from scheduling.history.statistics.counts_from_events import Fold, FoldState
from scheduling.history.statistics.tallies import (
    BOUNDS_S,
    TOTAL,
    Figure,
    Tally,
    TallyKey,
    added,
    per_task_week,
    percentile,
)

HOUR = 3600
T0 = 100 * HOUR  # 100 hours after the epoch
PROD, BATCH = 1, 2


def submitted(job: int = PROD, *, tasks: int = 1, kind: str = "job") -> events.JobSubmitted:
    return events.JobSubmitted(
        job_id=job,
        uid="",
        tenant_id=1,
        tenant="t",
        name=f"j{job}",
        job_kind=kind,
        priority=200 if job == PROD else 100,
        latency_sensitive=True,
        spec_version=1,
        groups=(Group(Requirement((1, 1, 1, 0, 0, 0)), ((0, tasks - 1),)),),
    )


def placed(job: int = PROD, index: int = 0, incarnation: int = 1) -> events.TaskPlaced:
    return events.TaskPlaced(job_id=job, index=index, machine_id=7, incarnation=incarnation, spec_version=3)


def reported(phase: str, job: int = PROD, *, incarnation: int = 1, up: bool = False) -> events.TaskReported:
    return events.TaskReported(
        job_id=job, index=0, machine_id=7, incarnation=incarnation, phase=phase, health="unknown", up=up
    )


def evicted(cause: str, job: int = PROD, index: int = 0, incarnation: int = 1) -> events.TaskEvicted:
    return events.TaskEvicted(job_id=job, index=index, machine_id=7, incarnation=incarnation, cause=cause)


def ended(job: int = PROD, index: int = 0, machine: int = 7) -> events.TaskEnded:
    return events.TaskEnded(job_id=job, index=index, machine_id=machine, incarnation=1, how="finished")


def folded(news: Iterable[tuple[float, Event]], *, until: float = 0.0) -> Fold:
    """Return the statistics of events, counted until `until`. Times are seconds after `T0`."""
    fold = Fold(FoldState(), lambda priority: priority >= 120)
    fold.apply_all((event, T0 + at) for at, event in news)
    fold.advance(T0 + until)
    return fold


def total(fold: Fold, figure: Figure, label: str = "", *, prod: bool = True) -> Tally:
    return fold.tallies.get(TallyKey(TOTAL, figure, prod, label), Tally())


def test_the_time_from_submission_to_running_has_three_parts() -> None:
    fold = folded(
        [
            (0, submitted()),
            (4, placed()),
            (5, reported("installing")),
            (34, reported("starting")),
            (41.5, reported("up", up=True)),
        ]
    )
    parts = {part: total(fold, Figure.START, part).total for part in ("queue", "install", "start", "total")}
    assert parts == {"queue": 4.0, "install": 30.0, "start": 7.5, "total": 41.5}
    assert total(fold, Figure.DELAY, "first").total == 4.0
    (start,) = fold.starts
    assert (start.job_id, start.spec_version, start.install_s, start.total_s) == (PROD, 3, 30.0, 41.5)
    assert fold.state.jobs[PROD].waiting == {}


def test_a_task_that_is_up_at_once_spent_no_time_in_start() -> None:
    fold = folded([(0, submitted()), (1, placed()), (3, reported("up", up=True))])
    assert [total(fold, Figure.START, part).total for part in ("queue", "install", "start")] == [1.0, 2.0, 0.0]


def test_a_task_with_a_check_is_running_once_it_is_healthy() -> None:
    fold = folded(
        [(0, submitted()), (1, placed()), (2, reported("starting")), (3, reported("up")), (9, reported("up", up=True))]
    )
    assert total(fold, Figure.START, "start").total == 7.0
    assert total(fold, Figure.START, "start").number == 1


def test_later_changes_of_a_task_that_was_up_do_not_count_as_starts() -> None:
    fold = folded(
        [
            (0, submitted()),
            (1, placed()),
            (2, reported("up", up=True)),
            (60, reported("backoff")),
            (90, reported("up", up=True)),
        ]
    )
    assert total(fold, Figure.START, "total").number == 1


def test_reports_of_an_earlier_incarnation_are_ignored() -> None:
    fold = folded(
        [
            (0, submitted()),
            (1, placed()),
            (2, evicted("preemption")),
            (5, placed(incarnation=2)),
            (6, reported("up", incarnation=1, up=True)),
            (8, reported("up", incarnation=2, up=True)),
        ]
    )
    assert total(fold, Figure.START, "total").total == 6.0  # from the eviction on
    assert (total(fold, Figure.DELAY, "first").total, total(fold, Figure.DELAY, "again").total) == (1.0, 3.0)


def test_evictions_are_counted_by_cause_and_priority() -> None:
    fold = folded(
        [
            (0, submitted(PROD, tasks=2)),
            (0, submitted(BATCH, tasks=2)),
            (1, placed(PROD)),
            (1, placed(BATCH)),
            (1, placed(BATCH, 1)),
            (2, evicted("machine-failure", PROD)),
            (3, evicted("preemption", BATCH)),
            (4, evicted("preemption", BATCH, 1)),
        ]
    )
    assert total(fold, Figure.EVICTIONS, "machine-failure").number == 1
    assert total(fold, Figure.EVICTIONS, "preemption").number == 0
    assert total(fold, Figure.EVICTIONS, "preemption", prod=False).number == 2


def test_the_rate_is_per_task_week() -> None:
    """Run two tasks for 3.5 days each, which is one task-week, with three evictions. The rate is 3 per task-week."""
    half_week = 3.5 * 24 * HOUR
    fold = folded(
        [
            (0, submitted(tasks=2)),
            (0, placed()),
            (0, placed(index=1)),
            (half_week, evicted("preemption")),
            (half_week, evicted("preemption", index=1)),
        ]
    )
    running_s = total(fold, Figure.RUNNING).total
    assert running_s == 7 * 24 * HOUR
    assert per_task_week(3, running_s) == 3.0
    assert per_task_week(3, 0.0) is None


def test_running_time_is_split_at_full_hours() -> None:
    fold = folded([(0, submitted(tasks=3)), (1800, placed()), (5400, placed(index=1)), (9000, ended())], until=10_800)
    hours = {
        (key.hour - T0) // HOUR: tally.total
        for key, tally in fold.tallies.items()
        if key.figure is Figure.RUNNING and key.hour != TOTAL
    }
    assert hours == {0: 1800.0, 1: 3600.0 + 1800.0, 2: 2 * 1800.0 + 1800.0}
    assert total(fold, Figure.RUNNING).total == sum(hours.values())


def test_a_changed_priority_moves_the_running_time() -> None:
    changed = events.JobChanged(job_id=PROD, priority=0, latency_sensitive=False, spec_version=1)
    fold = folded([(0, submitted()), (0, placed()), (100, changed)], until=400)
    assert total(fold, Figure.RUNNING).total == 100.0
    assert total(fold, Figure.RUNNING, prod=False).total == 300.0


def test_alloc_sets_are_not_counted() -> None:
    fold = folded(
        [
            (0, submitted(kind="alloc-set")),
            (1, placed()),
            (2, reported("up", up=True)),
            (3, evicted("machine-failure")),
        ],
        until=100,
    )
    assert fold.tallies == {}


def test_tasks_that_end_and_jobs_that_end_leave_nothing_behind() -> None:
    fold = folded(
        [
            (0, submitted(tasks=2)),
            (1, placed()),
            (2, ended()),
            (2, ended(index=1, machine=0)),
            (3, events.JobEnded(job_id=PROD, how="finished")),
        ],
        until=1000,
    )
    assert fold.state.jobs == {}
    assert fold.state.running == [0, 0]
    assert total(fold, Figure.RUNNING).total == 1.0


NEWS: list[tuple[float, Event]] = [
    (0, submitted(PROD, tasks=2)),
    (3, submitted(BATCH)),
    (4, placed()),
    (5, placed(BATCH)),
    (9, reported("up", up=True)),
    (12, evicted("preemption", BATCH)),
    (20, placed(BATCH, incarnation=2)),
    (31, reported("up", BATCH, incarnation=2, up=True)),
    (4000, evicted("machine-shutdown")),
]


@pytest.mark.parametrize("cut", range(len(NEWS)))
def test_a_state_that_was_stored_goes_on_as_if_nothing_had_happened(cut: int) -> None:
    whole = folded(NEWS, until=5000)
    first = folded(NEWS[:cut])
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(first.state), type=FoldState)
    second = Fold(stored, first.is_prod, tallies=first.tallies)
    second.apply_all((event, T0 + at) for at, event in NEWS[cut:])
    second.advance(T0 + 5000)
    assert second.tallies == whole.tallies
    assert second.state == whole.state


def test_a_snapshot_begins_without_counting() -> None:
    fold = Fold(FoldState(), lambda priority: priority >= 120)
    snapshot = [submitted(tasks=3), placed(), evicted("preemption"), placed(incarnation=2), placed(index=1)]
    fold.begin([(event, 5.0) for event in snapshot], now=float(T0))
    assert fold.tallies == {}
    fold.apply_all([(placed(index=2), T0 + 10.0), (evicted("preemption", index=1), T0 + 20.0)])
    assert total(fold, Figure.DELAY, "first").number == 0  # it is unknown how long it has waited
    assert total(fold, Figure.EVICTIONS, "preemption").number == 1
    assert total(fold, Figure.RUNNING).total == 2 * 10.0 + 3 * 10.0


# --- histograms


def test_percentiles_are_read_from_the_histogram() -> None:
    tally = Tally()
    for seconds in (0.05, 0.3, 0.3, 7.0, 7.0, 7.0, 7.0, 45.0, 45.0, 100_000.0):
        tally.observe(seconds)
    assert tally.number == 10
    assert percentile(tally.buckets, 0.1) == 0.1
    assert percentile(tally.buckets, 0.2) == pytest.approx(0.2 + 0.3 * 1 / 2)
    assert percentile(tally.buckets, 0.5) == pytest.approx(5.0 + 5.0 * 2 / 4)
    assert percentile(tally.buckets, 0.9) == 60.0
    assert percentile(tally.buckets, 0.99) == BOUNDS_S[-1]
    assert percentile([], 0.5) is None


def test_histograms_add_up() -> None:
    first, second = Tally(), Tally()
    first.observe(0.05)
    second.observe(0.05)
    second.observe(1e9)
    assert added([first.buckets, [], second.buckets]) == [2, *[0] * (len(BOUNDS_S) - 1), 1]
