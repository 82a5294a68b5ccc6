"""Tests of comparing a Borglet's report with the database rows: which difference leads to which change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from borglet.messages import EndCause, Exit, Health, Phase, Removal, Report, TaskKey, TaskReport
from scheduling.core.vocabulary.states import Observation
from scheduling.link.views.exit_verdict import TaskExit
from scheduling.link.views.report_changes import (
    ExpectedTask,
    IncarnationGone,
    ReportChanges,
    UnknownIncarnation,
    Unwanted,
    View,
    compare,
)

HISTORY, GENERATION = "h1", "g1"
KEY = TaskKey("a" * 32, 0, 3)
OTHER = TaskKey("b" * 32, 1, 1)
CRASH = Exit(EndCause.SIGNALED, 5.0, signal=11)


def a_view(
    *,
    run: dict[TaskKey, ExpectedTask] | None = None,
    stop: dict[TaskKey, int] | None = None,
    quarantine: frozenset[str] = frozenset(),
) -> View:
    return View(HISTORY, GENERATION, run or {}, stop or {}, quarantine)


def a_report(*tasks: TaskReport, **changed: Any) -> Report:
    report = Report(1, 1, HISTORY, GENERATION, 1, list(tasks))
    return msgspec.structs.replace(report, **changed)


def a_task(key: TaskKey = KEY, phase: Phase = Phase.UP, **changed: Any) -> TaskReport:
    return TaskReport(key, "cc/ubar/jfoo/0", phase, **changed)


def test_a_new_phase_is_seen_once() -> None:
    view = a_view(run={KEY: ExpectedTask(7)})
    report = a_report(a_task())
    assert compare(view, report) == ReportChanges(seen=[Observation(7, 3, "up", "unknown", True, 0)])
    assert not compare(view, report)


def test_facts_that_the_rows_hold_already_are_not_changes() -> None:
    expected = ExpectedTask(7, checked=True, phase="up", health="healthy", up=True, restarts=2, exit=("signaled", 5.0))
    task = a_task(health=Health.HEALTHY, restarts=2, exit=CRASH)
    assert not compare(a_view(run={KEY: expected}), a_report(task))


@pytest.mark.parametrize(
    ("checked", "phase", "health", "up"),
    [
        (False, Phase.UP, Health.UNKNOWN, True),
        (True, Phase.UP, Health.UNKNOWN, False),
        (True, Phase.UP, Health.UNHEALTHY, False),
        (True, Phase.UP, Health.HEALTHY, True),
        (False, Phase.STARTING, Health.UNKNOWN, False),
        (False, Phase.BACKOFF, Health.UNKNOWN, False),
    ],
)
def test_up_means_running_and_healthy_where_checked(checked: bool, phase: Phase, health: Health, up: bool) -> None:
    changes = compare(a_view(run={KEY: ExpectedTask(7, checked=checked)}), a_report(a_task(KEY, phase, health=health)))
    assert [seen.up for seen in changes.seen] == [up]


def test_a_local_restart_brings_its_exit_once() -> None:
    view = a_view(run={KEY: ExpectedTask(7, phase="up", up=True)})
    first = compare(view, a_report(a_task(KEY, Phase.BACKOFF, exit=CRASH)))
    assert first.seen[0].exit == {
        "cause": "signaled",
        "at": 5.0,
        "status": None,
        "signal": 11,
        "detail": "",
        "notice": "",
    }
    second = compare(view, a_report(a_task(KEY, Phase.UP, restarts=1, exit=CRASH)))
    assert second.seen == [Observation(7, 3, "up", "unknown", True, 1, None)]


def test_an_end_of_what_should_run_is_reported_once() -> None:
    view = a_view(run={KEY: ExpectedTask(7, restart_on="never", max_moves=1)})
    report = a_report(a_task(KEY, Phase.ENDED, restarts=4, exit=CRASH))
    assert compare(view, report) == ReportChanges(over=[TaskExit(7, 3, CRASH, 4, "never", 1)])
    assert not compare(view, report)


def test_what_should_stop_is_gone_when_it_ended_or_is_absent() -> None:
    view = a_view(stop={KEY: 7, OTHER: 8})
    report = a_report(a_task(KEY, Phase.ENDED, exit=CRASH))
    changes = compare(view, report)
    told = {"cause": "signaled", "at": 5.0, "status": None, "signal": 11, "detail": "", "notice": ""}
    assert changes.gone == [IncarnationGone(7, 3, told), IncarnationGone(8, 1)]
    assert not compare(view, report)


def test_what_is_stopping_is_not_gone_yet() -> None:
    assert not compare(a_view(stop={KEY: 7}), a_report(a_task(KEY, Phase.STOPPING)))


@pytest.mark.parametrize("generation", ["older", ""])
def test_absence_counts_only_when_the_desired_state_is_acknowledged(generation: str) -> None:
    view = a_view(run={KEY: ExpectedTask(7)}, stop={OTHER: 8})
    assert not compare(view, a_report(generation=generation))
    assert compare(view, a_report()) == ReportChanges(lost=[(7, 3)], gone=[IncarnationGone(8, 1)])


def test_another_history_changes_nothing() -> None:
    view = a_view(run={KEY: ExpectedTask(7)})
    assert not compare(view, a_report(a_task(), history_id="h0"))
    assert view.run[KEY].phase == "assigned"


def test_unknown_incarnations_are_reported_when_they_change_until_acknowledged() -> None:
    view = a_view()
    report = a_report(a_task(quarantined=True), a_task(OTHER, Phase.ENDED))
    assert not compare(view, msgspec.structs.replace(report, generation="older"))
    assert compare(view, report).strangers == [UnknownIncarnation(KEY, "cc/ubar/jfoo/0", True)]
    assert compare(view, report).strangers is None
    assert compare(view, a_report()).strangers == []


def test_an_alloc_is_up_when_its_machine_answers() -> None:
    view = a_view(run={KEY: ExpectedTask(7, alloc=True)})
    assert compare(view, a_report()) == ReportChanges(seen=[Observation(7, 3, "up", "unknown", True, 0)])
    assert not compare(view, a_report())


def test_a_task_that_its_machine_wants_to_be_rid_of_is_reported_once() -> None:
    view = a_view(run={KEY: ExpectedTask(7, phase="up", up=True)})
    removals = [Removal(KEY, "cpu-starved", "no CPU for 180 s"), Removal(OTHER, "cpu-starved", "not ours")]
    report = a_report(a_task(), removals=removals)
    told = "removed at the request of its machine (cpu-starved): no CPU for 180 s"
    assert compare(view, report) == ReportChanges(unwanted=[Unwanted(7, 3, told, "cpu-starved")])
    assert not compare(view, report)


def test_a_machine_is_rid_of_a_few_tasks_at_a_time() -> None:
    keys = [TaskKey("a" * 32, index, 1) for index in range(6)]
    view = a_view(run={key: ExpectedTask(key.index, phase="up", up=True) for key in keys})
    removals = [Removal(key, "cpu-starved", "") for key in keys]
    assert len(compare(view, a_report(*map(a_task, keys), removals=removals)).unwanted) == 4


OK = Exit(EndCause.EXITED, 1.0, status=0)
BAD = Exit(EndCause.EXITED, 1.0, status=3)


def test_an_address_of_its_own_is_news_once_and_must_be_one() -> None:
    view = a_view(run={KEY: ExpectedTask(7, phase="up", up=True)})
    report = a_report(a_task(address="10.20.30.4"))
    (seen,) = compare(view, report).seen
    assert seen.address == "10.20.30.4"
    assert not compare(view, report)
    # A machine can report any text, but names resolve only to addresses.
    (seen,) = compare(view, a_report(a_task(address="evil.example.org\x00"))).seen
    assert seen.address == ""
