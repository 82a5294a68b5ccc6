"""Tests of how limits of a task are translated for the kernel, and when a limit counts as exceeded."""

from __future__ import annotations

import pytest

from borglet.messages import EndCause, Slack, Usage
from borglet.runtimes.cgroups.limits import MAX_SHARES, Grant, ceiling, kernel_limits, overuse, weight_of
from tests.real.runtimes.machine import MIB, a_task


def shares(**changes: object) -> int:
    return kernel_limits(a_task("x", **changes)).cpu_shares


def test_shares_follow_the_limit_and_the_class() -> None:
    one_core = {"limit": {"cpu": 1000}}
    assert shares(**one_core, latency_sensitive=True) == 8192
    assert shares(**one_core, latency_sensitive=False, priority=110) == 1024
    assert shares(**one_core, latency_sensitive=False, priority=0) == 128
    assert shares(limit={}) == 2
    assert shares(limit={"cpu": 2**50}) == MAX_SHARES


def test_a_task_with_slack_of_cpu_has_no_ceiling() -> None:
    assert kernel_limits(a_task("x", limit={"cpu": 250})).cpu_quota_milli == 0


def test_a_task_without_slack_of_cpu_is_capped_at_its_limit() -> None:
    task = a_task("x", limit={"cpu": 250}, slack=Slack(cpu=False))
    assert kernel_limits(task).cpu_quota_milli == 250
    greedy = kernel_limits(a_task("x", limit={"cpu": 250}), grant=Grant(cpu_milli=900))
    assert greedy.cpu_quota_milli == 900
    assert kernel_limits(task, grant=Grant(cpu_milli=900)).cpu_quota_milli == 250


def test_slack_of_memory_reaches_as_far_as_granted_and_its_limit_stays_soft() -> None:
    task = a_task("x", limit={"ram": 64 * MIB}, slack=Slack(ram=True))
    for granted, hard in ((0, 64), (40, 64), (90, 90)):
        limits = kernel_limits(task, grant=Grant(ram_bytes=granted * MIB))
        assert (limits.ram_bytes, limits.ram_soft_bytes) == (hard * MIB, 64 * MIB)
    assert ceiling(a_task("x", limit={"ram": 5}), Grant(ram_bytes=9)) == {"ram": 5}
    assert ceiling(a_task("x", limit={}, slack=Slack(ram=True)), Grant(ram_bytes=9)) == {}


def test_classes() -> None:
    def classes(**changes: object) -> tuple[bool, bool]:
        limits = kernel_limits(a_task("x", **changes))
        return limits.batch, limits.cpu_idle

    assert classes(latency_sensitive=True, prod=False, priority=0) == (False, False)
    assert classes(latency_sensitive=False, prod=True, priority=200) == (True, False)
    assert classes(latency_sensitive=False, prod=False, priority=110) == (True, False)
    assert classes(latency_sensitive=False, prod=False, priority=99) == (True, True)


def test_best_effort_goes_first_when_the_machine_is_out_of_memory() -> None:
    scores = [
        kernel_limits(a_task("x", prod=prod, priority=priority)).oom_score_adj
        for prod, priority in ((True, 200), (False, 110), (False, 0))
    ]
    assert scores == sorted(scores)
    assert len(set(scores)) == 3


def test_weights_span_version_twos_range() -> None:
    assert (weight_of(2), weight_of(1024), weight_of(MAX_SHARES)) == (1, 39, 10000)


@pytest.mark.parametrize(
    ("usage", "cause"),
    [
        (Usage(ram_bytes=64 * MIB, processes=10, disk_bytes=5 * MIB), None),
        (Usage(ram_bytes=64 * MIB + 1), EndCause.OUT_OF_MEMORY),
        (Usage(processes=11), EndCause.OUT_OF_PROCESSES),
        (Usage(disk_bytes=5 * MIB + 1), EndCause.OUT_OF_DISK),
        (Usage(cpu_milli=10**6), None),  # compressible: never a reason to kill
    ],
)
def test_limits_may_be_reached_but_not_passed(usage: Usage, cause: EndCause | None) -> None:
    found = overuse({"cpu": 1, "ram": 64 * MIB, "disk": 5 * MIB}, 10, usage)
    assert (found and found.cause) == cause


def test_a_missing_limit_does_not_limit() -> None:
    assert overuse({}, 0, Usage(ram_bytes=2**50, disk_bytes=2**50, processes=10**6)) is None


def test_the_figures_are_reported() -> None:
    found = overuse({"ram": 64 * MIB}, 0, Usage(ram_bytes=100 * MIB))
    assert found is not None
    assert found.detail == "the task used 100 MiB of RAM, and its limit is 64 MiB; raise the RAM limit"
