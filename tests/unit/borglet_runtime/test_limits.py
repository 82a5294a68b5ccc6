"""What a limit becomes, and when it is passed."""

from __future__ import annotations

import pytest

from borglet.messages import EndCause, Usage
from borglet.runtimes.limits import MAX_SHARES, kernel_limits, overuse, weight_of
from tests.unit.borglet_runtime.machine import MIB, a_task


def shares(**changes: object) -> int:
    return kernel_limits(a_task("x", **changes), cap_cpu=False).cpu_shares


def test_shares_follow_the_limit_and_the_class() -> None:
    one_core = {"limit": {"cpu": 1000}}
    assert shares(**one_core, latency_sensitive=True) == 8192
    assert shares(**one_core, latency_sensitive=False, priority=110) == 1024
    assert shares(**one_core, latency_sensitive=False, priority=0) == 128
    assert shares(limit={}) == 2
    assert shares(limit={"cpu": 2**50}) == MAX_SHARES


def test_a_ceiling_only_where_asked_for() -> None:
    task = a_task("x", limit={"cpu": 250})
    assert kernel_limits(task, cap_cpu=False).cpu_quota_milli == 0
    assert kernel_limits(task, cap_cpu=True).cpu_quota_milli == 250


def test_best_effort_goes_first_when_the_machine_is_out_of_memory() -> None:
    scores = [
        kernel_limits(a_task("x", prod=prod, priority=priority), cap_cpu=False).oom_score_adj
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


def test_no_limit_is_no_limit() -> None:
    assert overuse({}, 0, Usage(ram_bytes=2**50, disk_bytes=2**50, processes=10**6)) is None


def test_the_figures_are_told() -> None:
    found = overuse({"ram": 64 * MIB}, 0, Usage(ram_bytes=100 * MIB))
    assert found is not None
    assert found.detail == "limit 64 MiB, used 100 MiB"
