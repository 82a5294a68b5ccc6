"""Tests of tasks that start and fail again and again: which changes are written at once, and which are held back."""

from __future__ import annotations

from collections.abc import Iterator

from borglet.messages import TaskKey
from scheduling.core.vocabulary.states import Observation
from scheduling.link.views.flaps import BURST, REFILL_S, STEADY_MOST_S, STEADY_S, FlapDamper
from scheduling.link.views.report_changes import ExpectedTask, View

KEY = TaskKey("a" * 32, 0, 3)


def up(restarts: int = 1) -> Observation:
    return Observation(7, 3, "up", "unknown", True, restarts)


def down(restarts: int = 1) -> Observation:
    return Observation(7, 3, "backoff", "unknown", False, restarts, {"cause": "exited", "at": float(restarts)})


def crashes(first: int = 1) -> Iterator[Observation]:
    restarts = first
    while True:
        yield up(restarts)
        yield down(restarts)
        restarts += 1


def spent(now: float = 0.0) -> tuple[FlapDamper, Iterator[Observation]]:
    """Return a damper and further changes of its task. The task has used up its allowance, so the damper holds back
    changes.

    The last change that was written says that the task is not up.
    """
    damper, changes = FlapDamper(), crashes()
    for _ in range(BURST):
        assert len(damper.passed([next(changes)], now)) == 1
    return damper, changes


def test_the_first_changes_are_written_at_once() -> None:
    damper, changes = spent()
    assert damper.passed([next(changes)], 0.0) == []
    assert damper.holds


def test_a_task_that_starts_once_leaves_no_trace() -> None:
    damper = FlapDamper()
    for phase in ("installing", "starting", "up"):
        assert damper.passed([Observation(7, 3, phase, "unknown", phase == "up")], 0.0)
    assert not damper._known


def test_a_task_that_stops_being_up_is_always_written_at_once() -> None:
    damper, changes = spent()
    damper.passed([next(changes)], 0.0)
    assert [one.up for one in damper.due(STEADY_S)] == [True]
    assert [one.up for one in damper.passed([next(changes)], STEADY_S)] == [False]


def test_a_task_that_is_up_again_is_written_once_it_is_steady() -> None:
    damper, changes = spent()
    assert damper.passed([next(changes)], 0.0) == []
    assert damper.due(STEADY_S - 1) == []
    assert damper.due(STEADY_S) == [up(BURST // 2 + 1)]
    assert not damper.holds


def test_changes_that_were_not_written_are_counted() -> None:
    damper, changes = spent()
    for _ in range(7):
        damper.passed([next(changes)], 0.0)
    assert [(one.up, one.restarts, one.skipped) for one in damper.due(STEADY_S)] == [(True, BURST // 2 + 4, 6)]


def test_the_exit_of_a_skipped_run_is_not_lost() -> None:
    damper, _ = spent()
    damper.passed([down(90)], 0.0)
    damper.passed([Observation(7, 3, "starting", "unknown", False, 91)], 1.0)
    (written,) = damper.due(REFILL_S)
    assert written.exit == {"cause": "exited", "at": 90.0}
    assert (written.phase, written.skipped) == ("starting", 1)


def test_a_task_that_keeps_flapping_has_to_be_up_longer_and_at_most_five_minutes() -> None:
    damper, changes = spent()
    now, waits = 0.0, []
    for _ in range(6):
        damper.passed([next(changes)], now)
        began = now
        while not damper.due(now):
            now += 1.0
        waits.append(now - began)
        assert damper.passed([next(changes)], now)
    assert waits == sorted(waits)
    assert waits[0] <= STEADY_S < waits[-1] <= STEADY_MOST_S


def test_a_crash_loop_of_a_day_writes_one_event_in_ten_minutes() -> None:
    damper, changes = FlapDamper(), crashes()
    written, skipped, number = 0, 0, 0
    for second in range(86_400):
        now = float(second)
        found = damper.due(now)
        if second % 30 == 0:
            number += 1
            found += damper.passed([next(changes)], now)
        written += len(found)
        skipped += sum(one.skipped for one in found)
    assert 100 < written <= BURST + 86_400 / REFILL_S
    (last,) = damper._known.values()
    assert written + skipped + last.skipped + damper.holds == number


def test_a_calm_task_is_written_at_once_again() -> None:
    damper, changes = spent()
    assert damper.passed([next(changes)], BURST * REFILL_S)


def test_equal_reports_are_one_change() -> None:
    damper, changes = spent()
    one = next(changes)
    for _ in range(5):
        assert damper.passed([one], 0.0) == []
    assert [found.skipped for found in damper.due(STEADY_S)] == [0]


def test_a_view_that_was_read_again_decides_what_is_written() -> None:
    """Lose a written change, as after a failed write. The comparison with the rows must find the change again."""
    damper, _ = spent()
    failed = up(8)
    damper.passed([failed], 0.0)
    assert damper.due(STEADY_S) == [failed]
    damper.rebase(View("h", "g", {KEY: ExpectedTask(7, phase="backoff", restarts=7)}), STEADY_S)
    assert damper.passed([failed], STEADY_S) == []
    assert damper.due(STEADY_S + STEADY_MOST_S) == [failed]


def test_a_held_change_that_the_rows_contain_is_dropped() -> None:
    damper, _ = spent()
    damper.passed([up(8)], 0.0)
    damper.rebase(View("h", "g", {KEY: ExpectedTask(7, phase="up", up=True, restarts=8)}), 1.0)
    assert not damper.holds


def test_incarnations_that_have_left_are_forgotten() -> None:
    damper, changes = spent()
    damper.passed([next(changes)], 0.0)
    damper.rebase(View("h", "g", {}), 1.0)
    assert not damper.holds
    assert damper.due(10_000.0) == []
