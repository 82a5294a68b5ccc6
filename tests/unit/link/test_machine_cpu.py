"""Tests of the conversion between normalised CPU and the CPU of a machine."""

from __future__ import annotations

from array import array

import msgspec

from borglet.messages import RunAlloc, RunTask, TaskKey, Usage, UsageWindow
from scheduling.link.views.machine_cpu import PLAIN, machine_cpu
from scheduling.usage.measured import MeasuredUsage

KEY, OTHER = TaskKey("ab" * 16, 0, 1), TaskKey("ab" * 16, 1, 1)

IDS = {KEY: 7, OTHER: 8}


def a_task(key: TaskKey = KEY, cpu: int = 1001, **changed) -> RunTask:
    return RunTask(key, "cc/ubar/web/0", ["serve"], {}, {"cpu": cpu, "ram": 7}, {}, 200, True, True, 1, **changed)


def a_window(key: TaskKey = KEY) -> UsageWindow:
    return UsageWindow(key, 0, 300, 60, 100, 200, 80, [10] * 11, [20] * 9, 7, 8, 334, 9, throttled_milli=40)


def test_limits_are_divided_by_the_factor() -> None:
    cpu = machine_cpu(3000, [a_task()], IDS.__getitem__)
    assert cpu.limited(a_task()).limit == {"cpu": 334, "ram": 7}
    assert cpu.limited(RunAlloc(KEY, "x", {"cpu": 300}, 200, True, True)).limit == {"cpu": 100}
    slow = machine_cpu(500, [], IDS.__getitem__)
    assert slow.limited(a_task()).limit["cpu"] == 2002
    assert slow.limited(a_task(cpu=2000, whole_cores=True)).limit["cpu"] == 2000, "whole cores are those of the machine"


def test_usage_is_multiplied_by_the_factor() -> None:
    columns = len(Usage.__struct_fields__)
    rows = [Usage(cpu_milli=1000, ram_bytes=5, throttled_milli=10), Usage(cpu_milli=100, oom_kills=3)]
    figures = array("q", [figure for usage in rows for figure in msgspec.structs.astuple(usage)])
    measured = MeasuredUsage(1, columns, figures, array("q", [-1, 7]), array("q", [0, 1]))
    found = machine_cpu(1250, [], IDS.__getitem__).normalised_usage(measured).figures.tolist()
    assert Usage(*found[:columns]) == Usage(cpu_milli=1250, ram_bytes=5, throttled_milli=12)
    assert Usage(*found[columns:]) == Usage(cpu_milli=125, oom_kills=3)
    assert measured.figures[0] == 1000
    older = MeasuredUsage(1, 1, array("q", [1000, 100]), array("q", [-1, 7]), array("q", [0, 1]))
    assert machine_cpu(1250, [], IDS.__getitem__).normalised_usage(older).figures.tolist() == [1250, 125]


def test_usage_of_whole_cores_is_in_cores_of_the_machine_like_their_limit() -> None:
    cpu = machine_cpu(2000, [a_task(cpu=2000, whole_cores=True), a_task(OTHER)], IDS.__getitem__)
    measured = MeasuredUsage(1, 1, array("q", [1900, 1200, 100]), array("q", [-1, 7, 8]), array("q", [0, 1, 1]))
    assert cpu.normalised_usage(measured).figures.tolist() == [3800, 1200, 200]
    assert cpu.normalised_window(window := a_window()) is window
    assert cpu.normalised_window(a_window(OTHER)).cpu_milli == 200


def test_windows_of_usage_keep_the_limit_that_the_task_asked_for() -> None:
    cpu = machine_cpu(3000, [a_task()], IDS.__getitem__)
    found = cpu.normalised_window(a_window())
    assert (found.cpu_milli, found.most_cpu_milli, found.random_cpu_milli) == (300, 600, 240)
    assert (found.throttled_milli, found.cpu_distribution, found.cpu_tail) == (120, [30] * 11, [60] * 9)
    assert (found.limit_cpu_milli, found.ram_bytes, found.limit_ram_bytes) == (1001, 7, 9)
    earlier = msgspec.structs.replace(a_window(), limit_cpu_milli=100)
    assert cpu.normalised_window(earlier).limit_cpu_milli == 300, "the limit was another one then"
    assert cpu.normalised_window(a_window(OTHER)).limit_cpu_milli == 1002, "it has left, so its limit is computed"


def test_without_a_factor_nothing_is_converted() -> None:
    measured = MeasuredUsage(1, 1, array("q", [1]), array("q", [-1]), array("q", [0]))
    assert machine_cpu(1000, [a_task()], IDS.__getitem__) is PLAIN
    assert PLAIN.normalised_usage(measured) is measured
    assert PLAIN.normalised_window(window := a_window()) is window
