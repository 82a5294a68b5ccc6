"""Tests of rates computed from counters: CPU that was used, and CPU that throttling denied (§5.5)."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from borglet.messages import TaskKey
from borglet.runtimes.cgroups.cgroups import GroupUsage
from borglet.runtimes.measuring.disk_usage import DiskWalk
from borglet.runtimes.measuring.meter import Meter, Metered

KEY = TaskKey("a" * 32, 0, 1)


@dataclass
class Counters:
    """A test double for control groups, with counters that a test sets."""

    cpu_ns: int = 0
    throttled_ns: int = 0

    def measure(self, groups: dict[str, str]) -> GroupUsage:
        if groups["unified"] == "odd":
            raise ValueError("a figure that is none")
        return GroupUsage(self.cpu_ns, 2**20, 1, self.throttled_ns)


def test_what_throttling_denied_is_a_rate_beside_what_was_used() -> None:
    counters = Counters(cpu_ns=5 * 10**9, throttled_ns=7 * 10**9)
    meter = Meter(counters)  # type: ignore[arg-type]
    task = Metered(1, {"unified": "here"}, DiskWalk(()))
    first = meter.measure({KEY: task})[KEY]
    assert (first.cpu_milli, first.throttled_milli) == (0, 0)  # adopted: usage before the adoption is not counted
    task.at = time.monotonic() - 2
    counters.cpu_ns += 10**9
    counters.throttled_ns += 3 * 10**9
    second = meter.measure({KEY: task})[KEY]
    assert second.cpu_milli == pytest.approx(500, rel=0.05)
    assert second.throttled_milli == pytest.approx(1500, rel=0.05)


def test_one_tasks_unreadable_figure_keeps_no_other_from_being_measured(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter(Counters())  # type: ignore[arg-type]
    odd = TaskKey("b" * 32, 0, 1)
    found = meter.measure(
        {odd: Metered(1, {"unified": "odd"}, DiskWalk(())), KEY: Metered(1, {"unified": "here"}, DiskWalk(()))}
    )
    assert list(found) == [KEY]
    assert f"cannot read the usage of task {odd}" in caplog.text
    assert "a figure that is none" in caplog.text
