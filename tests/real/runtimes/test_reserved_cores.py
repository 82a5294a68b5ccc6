"""Tests of whole cores (§6.2): how they are assigned, kept and freed, and rejected with figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from borglet.messages import RunTask
from borglet.runtimes.cgroups.reserved_cores import CorePool, NoCores
from borglet.runtimes.cgroups.system import format_cpus, parse_cpus, places_of
from tests.real.runtimes.machine import a_task, key


def owner(index: int, cores: int) -> RunTask:
    return a_task("x", key=key(index), limit={"cpu": 1000 * cores}, whole_cores=True)


def server(index: int) -> RunTask:
    return a_task("x", key=key(index))


def pool(cores: int) -> CorePool:
    return CorePool(frozenset(range(cores)))


def test_other_latency_sensitive_tasks_keep_off_and_come_back() -> None:
    machine = pool(4)
    assert not machine.admit(server(1))
    assert machine.of(key(1)) == frozenset()  # the task may use any core
    assert machine.admit(owner(0, 2))
    assert machine.of(key(0)) == {2, 3}
    assert machine.of(key(1)) == {0, 1}
    machine.admit(a_task("x", key=key(2), latency_sensitive=False))
    assert machine.of(key(2)) == frozenset()  # batch may use any core
    assert machine.release(key(0))
    assert machine.of(key(1)) == frozenset()


def test_a_changed_wish_moves_as_little_as_it_can() -> None:
    machine = pool(6)
    machine.admit(owner(0, 2))
    machine.admit(owner(1, 2))
    before = machine.of(key(0))
    assert machine.admit(owner(0, 3))
    assert before < machine.of(key(0))
    assert machine.admit(owner(0, 1))
    assert machine.of(key(0)) < before
    assert not machine.admit(owner(0, 1))
    assert machine.admit(server(0))
    assert machine.of(key(0)) == machine.shared


def test_too_few_cores_are_reported_and_nothing_changes() -> None:
    machine = pool(4)
    machine.admit(owner(0, 2))
    machine.admit(server(1))
    told = "the task asks for 2 cores, and 1 of 4 are free .2 reserved by other tasks, one kept"
    with pytest.raises(NoCores, match=told):
        machine.admit(owner(2, 2))
    assert set(machine.owned) == {key(0)}
    machine.release(key(1))
    machine.admit(owner(2, 2))
    with pytest.raises(NoCores, match="2 other tasks reserve all 4 cores of this machine"):
        machine.admit(server(3))
    assert key(3) not in machine.sharing


def test_an_adopted_task_keeps_the_cores_the_kernel_has_it_on() -> None:
    machine = pool(4)
    machine.adopt(owner(0, 1), frozenset({1}))
    machine.adopt(owner(1, 1), frozenset({1}))  # core 1 cannot belong to two tasks
    machine.adopt(owner(2, 2), frozenset(range(4)))  # its Borglet died before it had pinned the task
    assert machine.owned == {key(0): frozenset({1})}
    assert machine.sharing == {key(1), key(2)}
    machine.admit(owner(1, 1))
    assert machine.of(key(1)) == {3}


def test_threads_of_one_physical_core_stay_together() -> None:
    places = {core: (core // 4, core % 4 // 2 + core // 4 * 4) for core in range(8)}
    machine = CorePool(frozenset(range(8)), places)
    machine.admit(owner(0, 1))  # 7
    machine.admit(owner(1, 2))
    assert machine.of(key(1)) == {2, 3}  # not the lone 6, and a node with more room


def test_topology_is_read_where_the_machine_tells_it(tmp_path: Path) -> None:
    for core, siblings in ((0, "0,2"), (2, "0,2")):
        directory = tmp_path / f"cpu{core}"
        (directory / "topology").mkdir(parents=True)
        (directory / "topology" / "thread_siblings_list").write_text(siblings + "\n")
        (directory / "node1").mkdir()
    assert places_of([0, 2, 5], system=tmp_path) == {0: (1, 0), 2: (1, 0), 5: (0, 5)}


def test_lists_of_cores_are_the_kernels() -> None:
    assert format_cpus({3, 0, 1, 2, 8}) == "0-3,8"
    assert parse_cpus("0-3,8\n") == {0, 1, 2, 3, 8}
    assert parse_cpus("\n") == frozenset()
    assert format_cpus([]) == ""
