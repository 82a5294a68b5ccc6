"""Tests of the archiver process beside a worker: the worker does not wait, one runs at a time, failures are counted."""

from __future__ import annotations

import sys

from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from scheduling.history.archive import child


def failures() -> float:
    return REGISTRY.get_sample_value("borg_archive_failures_total") or 0.0


def run(code: str, *, longest_s: float = 60.0) -> list[str]:
    with capture_logs() as lines:
        thread = child.start([sys.executable, "-S", "-c", code], longest_s=longest_s)
        assert thread is not None
        thread.join(60)
    return [f"{line['event']}: {line.get('error', '')}{line['output']}" for line in lines]


def test_a_worker_does_not_wait_for_the_archiver() -> None:
    before = failures()
    first = child.start([sys.executable, "-S", "-c", "input()"])  # ends at once, because it has no input
    assert first is not None
    second = child.start(["true"])
    first.join(60)
    assert second is None
    assert failures() == before + 1
    assert run("print('done')") == ["the archiver has run: done"]
    assert failures() == before + 1


def test_an_archiver_that_fails_or_takes_too_long_is_counted() -> None:
    before = failures()
    assert run("import sys; sys.exit('the disk is full')") == [
        "the archiver failed: it ended with status 1the disk is full\n"
    ]
    assert run("import time; time.sleep(60)", longest_s=0.2) == [
        "the archiver failed: it ran for more than 0.2 s and was killed"
    ]
    assert failures() == before + 2
