"""Tests of the scheduler's state in memory: the effect of each event, rejected events, and its consistency checks."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling.core.cell.ports import PortMap
from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import IllegalTransition
from tests.builders import GIB, World, needs, vector


def test_news_that_do_not_touch_placement_move_the_revision_alone() -> None:
    state = CellState()
    state.apply(events.LeaseTaken(scheduler="default", holder="h", epoch=1), revision=4, time=0.0)
    assert state.revision == 4
    assert state.diff(CellState()) == []


def test_slots_are_used_again() -> None:
    world = World().machine("m1").machine("m2")
    slots = len(world.state.machines.id)
    for _ in range(3 * slots):
        world.remove("m2").machine("m2")
    assert len(world.state.machines.id) == slots
    tasks = len(world.state.tasks.id)
    for number in range(tasks):
        world.job(f"j{number}", tasks=2).end(f"j{number}", 0).end(f"j{number}", 1)
    assert len(world.state.tasks.id) == tasks


def test_tables_grow() -> None:
    world = World()
    for number in range(200):
        world.machine(f"m{number}", rack=f"r{number}")
    world.job("a", tasks=2000, cpu=100, ram=1)
    for number in range(300):
        world.job(f"j{number}", cpu=1, ram=1)
    world.schedule()
    assert world.state.validate() == []
    assert world.state.pending == 300 + 2000 - world.state.running
    assert world.state.running == 2300


def test_a_priority_that_leaves_prod_takes_its_limits_along() -> None:
    world = World().machine("m1").job("a", tasks=2)
    world.schedule()
    world.change_priority("a", 110)
    assert world.state.machines.prod_limit.sum() == 0
    assert world.state.validate() == []
    world.change_priority("a", 200)
    assert world.state.machines.prod_limit[:, 0].sum() == 2000


def test_an_update_in_place_changes_what_is_held() -> None:
    world = World().machine("m1").job("a", cpu=1000).place("a", 0, on="m1").reserve("a", 0, cpu=300, ram=GIB)
    world.update("a", 0, needs(cpu=500))
    assert world.state.machines.reserved[:, 0].sum() == 500
    world.reserve("a", 0, cpu=200, ram=GIB).update("a", 0, needs(cpu=500, max_per_machine=1))
    assert world.state.machines.reserved[:, 0].sum() == 200, "an equal limit keeps the reservation"
    assert world.from_rows().diff(world.state) == []


def test_a_job_that_is_over_is_remembered_until_its_last_process_is_gone() -> None:
    world = World().machine("m1").job("a", ports=1).place("a", 0, on="m1", ports=(20_001,)).end("a", 0)
    assert world.jobs["a"].job_id in world.state.tasks.jobs
    assert world.from_rows().diff(world.state) == []
    world.gone("a", 0, 1)
    assert world.state.tasks.jobs == {}
    assert world.from_rows().diff(world.state) == []


def test_events_that_figure_2_does_not_know_are_refused() -> None:
    world = World().machine("m1").job("a").place("a", 0, on="m1")
    with pytest.raises(IllegalTransition, match=r"task 0 of job a \(2\) is running: schedule"):
        world.place("a", 0, on="m1")
    with pytest.raises(LookupError, match=r"job a .* has no task 9"):
        world.state.apply(events.TaskPlaced(job_id=2, index=9, machine_id=1, incarnation=1), revision=1, time=0.0)
    with pytest.raises(LookupError, match="job 99 is not in this cell"):
        world.state.apply(events.JobEnded(job_id=99, how="killed"), revision=1, time=0.0)


def test_a_vector_longer_than_the_axis_asks_for_a_fresh_state() -> None:
    longer = events.MachineSet(machine_id=1, hostname="m", address="", capacity=(*vector(cpu=1), 7))
    with pytest.raises(ValueError, match="load the cell again"):
        CellState().apply(longer, revision=1, time=0.0)
    state = CellState(("tape",))
    state.apply(longer, revision=1, time=0.0)
    assert state.machines.capacity.shape[1] == 7


def test_validate_sees_a_counter_that_is_wrong() -> None:
    world = World().machine("m1").job("a").place("a", 0, on="m1")
    world.state.machines.reserved[world.state.machines.slot[1], 0] += 1
    assert any("machine 1: reserved is" in problem for problem in world.state.validate())


def test_jobs_with_rules_for_placing_are_counted() -> None:
    """Submit, change and end jobs that have each of the rules that are counted. The audit compares all counters."""
    world = World().machine("m1").job("all", gang=True, disruption_budget=1, max_running=1, start_after=9.0)
    world.job("none").job("waits", waiting=True, gang=True)
    tasks = world.state.tasks

    def counted() -> tuple[int, int, int, int]:
        assert world.state.validate() == []
        return tasks.gangs, tasks.budgets, tasks.bounded, tasks.delayed

    assert counted() == (2, 1, 1, 2)
    world.release("waits")
    assert counted() == (2, 1, 1, 1)
    world.change("none", gang=True, disruption_budget=2, max_running=3, start_after=4.0)
    assert counted() == (3, 2, 2, 2)
    world.change("all", gang=False, disruption_budget=0, max_running=0, start_after=0.0)
    assert counted() == (2, 1, 1, 1)
    world.end("none", 0)
    assert counted() == (1, 0, 0, 0)


@pytest.mark.parametrize("counter", ["gangs", "budgets", "bounded", "delayed"])
def test_validate_sees_a_counter_of_jobs_that_is_wrong(counter: str) -> None:
    world = World().job("a")
    setattr(world.state.tasks, counter, 1)
    (problem,) = world.state.validate()
    assert problem.startswith("0 jobs ")
    assert problem.endswith("the counter says 1")


def test_validate_reports_a_machine_that_shrank() -> None:
    world = World().machine("m1", cpu=4000).job("a", cpu=4000).place("a", 0, on="m1").machine("m1", cpu=1000)
    assert world.state.validate() == [
        "machine 1: prod tasks have limits of 4000 cpu, its capacity is 1000: it shrank, or was over-committed"
    ]


def test_validate_sees_two_holders_of_a_port() -> None:
    world = World().machine("m1").job("a", tasks=2, ports=1)
    world.place("a", 0, on="m1", ports=(20_005,)).place("a", 1, on="m1", ports=(20_005,))
    told = "port 20005 of machine 1 is held by task 0 of job a, task 1 of job a"
    assert told in world.state.validate()


def test_validate_sees_a_task_on_a_machine_that_is_not_there() -> None:
    world = World().machine("m1").job("a").place("a", 0, on="m1").remove("m1")
    assert world.state.validate() == ["task 0 of job a runs on a machine that the cell does not have"]


def test_diff_tells_what_differs() -> None:
    ours, theirs = World().machine("m1").job("a"), World().machine("m1").job("a").place("a", 0, on="m1")
    (machine, task) = ours.state.diff(theirs.state)
    assert machine.startswith("machine 1: reserved")
    assert task.startswith("task (2, 0): state <TaskState.PENDING")


def test_a_port_just_freed_is_not_the_next_one() -> None:
    ports = PortMap(10, 13)
    assert ports.offer(2, set()) == (10, 11)
    ports.hold((1, 1), (10, 11))
    ports.release((1, 1), (10, 11))
    assert ports.offer(2, set()) == (12, 13)
    ports.hold((2, 1), (12, 13))
    assert ports.offer(1, set()) == (10,)
    with pytest.raises(LookupError, match="the task needs 3 ports, but only 2 of the ports 10-13 are free"):
        ports.offer(3, set())


def test_free_ports_are_the_range_without_those_held_in_it() -> None:
    ports = PortMap(100, 109)
    assert ports.free == 10
    ports.hold((1, 1), (100, 101, 300))
    ports.hold((2, 1), (101,))  # two holders of one number: a machine that was reported wrong
    assert ports.free == 8
    ports.set_range(101, 104)
    assert ports.free == 3
    ports.release((1, 1), (100, 101, 300))
    assert ports.free == 3
    ports.release((2, 1), (101,))
    assert ports.free == 4
    ports.release((2, 1), (101,))
    assert ports.free == 4


def test_a_task_that_ends_twice_in_one_batch_is_named() -> None:
    world = World().machine("m1", cpu=64_000).job("a", tasks=10, cpu=100)
    world.schedule()
    job = world.jobs["a"].job_id
    ended = [
        events.TaskEnded(job_id=job, index=i, machine_id=1, incarnation=1, how="finished", gone=True)
        for i in (*range(9), 3)
    ]
    with pytest.raises(IllegalTransition, match="task 3 of job a"):
        world.state.apply_all((event, 100 + i, 1.0) for i, event in enumerate(ended))


@pytest.mark.parametrize(
    "change",
    [
        {"hostname": "other"},
        {"capacity": vector(cpu=5000, ram=8 * GIB)},
        {"attributes": {"zone": "c"}},
        {"attributes": {}},
        {"attributes": {"zone": "a", "flash": "true"}},
        {"rack": "r2"},
        {"power_domain": "p2"},
        {"port_low": 20_001, "port_high": 21_000},
        {"state": "down"},
    ],
    ids=lambda change: "-".join(change),
)
def test_diff_reports_each_difference_of_a_machine(change: dict[str, Any]) -> None:
    facts: dict[str, Any] = {
        "hostname": "m", "address": "127.0.0.1", "capacity": vector(cpu=4000, ram=8 * GIB), "attributes": {"zone": "a"},
        "rack": "r1", "port_low": 20_000, "port_high": 20_999,
    }  # fmt: skip
    left, right = CellState(), CellState()
    # The codes of attributes and the slots of machines differ, although the second machine is equal.
    left.apply(events.MachineSet(machine_id=2, **{**facts, "attributes": {"zone": "c"}}), revision=1, time=0.0)
    left.apply(events.MachineSet(machine_id=1, **facts), revision=2, time=0.0)
    right.apply(events.MachineSet(machine_id=1, **facts), revision=1, time=0.0)
    right.apply(events.MachineSet(machine_id=2, **{**facts, "attributes": {"zone": "c"}}), revision=2, time=0.0)
    assert left.diff(right) == []
    right.apply(events.MachineSet(machine_id=1, **{**facts, **change}), revision=3, time=0.0)
    (difference,) = left.diff(right)
    assert difference.startswith("machine 1: ")
    assert left.fingerprint() != right.fingerprint()


def test_diff_reports_installed_packages_and_held_ports() -> None:
    machine = events.MachineSet(machine_id=1, hostname="m", address="127.0.0.1", capacity=vector(cpu=4000, ram=8 * GIB))
    left, right = CellState(), CellState()
    for state in (left, right):
        state.apply(machine, revision=1, time=0.0)
    right.apply(events.PackagesHeld(came={"d" * 64: (1,)}), revision=2, time=0.0)
    assert "packages" in left.diff(right)[0]
    left.apply(events.PackagesHeld(came={"d" * 64: (1,)}), revision=2, time=0.0)
    assert left.diff(right) == []
    left.machines.ports[left.machines.slot[1]].hold((7, 1), [20_001])
    assert "held" in left.diff(right)[0]
