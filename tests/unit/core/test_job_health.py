"""Tests of a job's health, which is computed from the counts of its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduling.core.explaining.health_wording import exit_words, format_crash, format_troubles
from scheduling.core.vocabulary import job_health as job_health_module
from scheduling.core.vocabulary.job_health import JobHealth, Troubles, job_health


def health(living: int = 3, placed: int = 3, up: int = 3, *, updating: bool = False, **troubles: int) -> str:
    found = Troubles(**troubles)
    return job_health(ended=False, updating=updating, living=living, placed=placed, up=up, troubles=found).value


@pytest.mark.parametrize(
    "wanted, found",
    [
        ("healthy", health()),
        ("pending", health(placed=0, up=0)),
        ("starting", health(placed=1, up=0)),
        ("degraded", health(up=2)),
        ("degraded", health(up=2, crashing=1)),
        ("degraded", health(up=2, unhealthy=1)),
        ("degraded", health(living=2, placed=2, up=2, failed=1)),
        ("failing", health(up=0, crashing=3)),
        ("failing", health(up=0, unhealthy=1)),
        ("failing", health(living=0, placed=0, up=0, failed=3)),
        ("failing", health(placed=0, up=0, crashing=1)),
        ("failing", health(up=3, crashing=3, flapping=3)),
        ("updating", health(up=2, updating=True)),
        ("updating", health(up=0, updating=True)),
        ("degraded", health(up=2, updating=True, crashing=1)),
        ("failing", health(up=0, updating=True, crashing=1)),
    ],
)
def test_the_health_of_a_job_follows_from_its_counts(wanted: str, found: str) -> None:
    assert found == wanted


def test_every_health_is_documented() -> None:
    readme = (Path(job_health_module.__file__).parents[2] / "README.md").read_text()
    assert [word for word in JobHealth if f"| `{word}` |" not in readme] == []


def test_a_job_that_ended_has_ended_whatever_its_tasks_did() -> None:
    ended = job_health(ended=True, updating=False, living=0, placed=0, up=0, troubles=Troubles(failed=3))
    assert ended is JobHealth.ENDED


def test_crashes_are_reported_first() -> None:
    troubles = Troubles(crashing=2, flapping=1, unhealthy=1, failed=1)
    assert format_troubles(troubles, living=5) == [
        "2 of 5 tasks keep crashing.",
        "1 of 5 tasks runs, and its health check fails.",
        "1 task failed permanently and is not started again.",
    ]
    assert format_troubles(Troubles(), living=5) == []


def test_a_crash_is_reported_with_its_place_and_its_end() -> None:
    ended = {"cause": "exited", "status": 1, "signal": None}
    assert format_crash(0, machine="m1", restarts=4, exit_text=exit_words(ended)) == (
        "Task 0 on m1: exit status 1, 4 restarts."
    )
    killed = exit_words({"cause": "out-of-memory", "status": None, "signal": 9})
    assert format_crash(7, machine="", restarts=0, exit_text=killed) == (
        "Task 7 waits for another machine: signal 9 (out of memory)."
    )
