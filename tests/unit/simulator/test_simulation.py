"""Tests of the simulation of a cell: it is deterministic, follows the rules of production, and its figures agree."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.policy.cell_settings import CellSettings
from scheduling.simulator.simulation import Settings, Simulation
from scheduling.simulator.workload import MachineChange
from tests.builders import GIB
from tests.unit.simulator.small_cells import BUSY_S, Lasting, busy, job, machine, simulation

END = BUSY_S


def happened(one: Simulation, kind: type) -> list[events.Event]:
    return [record.event for record in one.cell.journal.recent if isinstance(record.event, kind)]


@pytest.fixture(scope="module")
def whole() -> Simulation:
    """Return a simulation that has run to its end. Tests must not change it."""
    one = busy()
    one.run(END)
    return one


def test_equal_seeds_give_bit_identical_journals(whole: Simulation) -> None:
    again, other = busy(), busy(seed=2012)
    for one in (again, other):
        one.run(END / 3)
    assert again.cell.journal.digest() != other.cell.journal.digest()
    again.run(END)
    assert whole.cell.journal.count > 300
    assert whole.cell.journal.digest() == again.cell.journal.digest()
    assert whole.state.diff(again.state) == []


def test_the_way_of_stepping_does_not_change_the_journal_and_the_state_stays_valid(whole: Simulation) -> None:
    stepped = busy()
    while stepped.now < END:
        stepped.run(min(stepped.now + 97.5, END))
        assert stepped.state.validate() == []
        assert stepped.cell.pending == stepped.state.pending
        assert stepped.cell.running == stepped.state.running
    assert whole.cell.journal.digest() == stepped.cell.journal.digest()


def test_a_copy_continues_like_the_original_and_leaves_it_alone(whole: Simulation) -> None:
    original = busy()
    original.run(END / 2)
    copied = original.copy()
    before = original.cell.journal.digest()
    copied.run(END)
    assert original.cell.journal.digest() == before
    original.run(END)
    assert copied.cell.journal.digest() == original.cell.journal.digest() == whole.cell.journal.digest()
    assert copied.state.diff(original.state) == []


def test_the_figures_agree_with_the_state(whole: Simulation) -> None:
    figures = whole.cell.keeper.figures
    assert figures.submitted == 100
    assert figures.failures == 3
    assert figures.placed - sum(figures.evictions.values()) - sum(figures.ended.values()) == whole.state.running
    assert figures.evictions[EvictionCause.MACHINE_FAILURE.value, True] > 0
    assert figures.evictions[EvictionCause.PREEMPTION.value, False] > 0
    assert figures.reservations > 20


def test_a_job_waits_for_a_pass_and_ends_after_its_run_time() -> None:
    one = simulation([(10.25, job(1, tasks=2))], behaviour=Lasting({1: 100.0}))
    one.run(10.5)
    assert (one.state.pending, one.state.running) == (2, 0)
    one.run(11.0)
    assert (one.state.pending, one.state.running) == (0, 2)
    one.run(110.9)
    assert one.state.running == 2
    one.run(111.0)
    assert one.state.running == 0
    assert happened(one, events.JobEnded) == [events.JobEnded(job_id=1, how="finished")]
    assert one.cell.keeper.figures.pending_s[True] == pytest.approx(2 * 0.75)


def test_tasks_of_a_lost_machine_move_after_its_silence() -> None:
    jobs = [(0.0, job(1, tasks=4))]
    one = simulation(jobs, changes=[MachineChange(100.0, 1, None)], machines=1)
    one.run(100.0 + CellSettings().down_after_s - 0.1)
    assert one.state.running == 4
    # All machines of the cell are lost: the brake holds the tasks back.
    one.run(200.0)
    assert one.state.running == 4
    assert [event.state for event in happened(one, events.BrakeSet)] == ["held"]

    two = simulation(jobs, changes=[MachineChange(100.0, 1, None), MachineChange(100.0, 2, None)], machines=6)
    two.run(90.0)
    on_lost = sum(len(two.cell.tasks_on(number)) for number in (1, 2))
    two.run(113.0)
    assert two.state.running == 4
    evicted = happened(two, events.TaskEvicted)
    assert len(evicted) == on_lost
    assert {event.cause for event in evicted} <= {"machine-failure"}


def test_a_machine_that_returns_early_has_lost_its_tasks() -> None:
    changes = [MachineChange(100.0, 1, None), MachineChange(105.0, 1, machine(1))]
    one = simulation([(0.0, job(1, tasks=3))], changes=changes, machines=1)
    one.run(104.0)
    assert happened(one, events.TaskEvicted) == []
    one.run(106.0)
    assert {event.cause for event in happened(one, events.TaskEvicted)} == {"lost"}
    assert one.state.running == 3
    assert happened(one, events.MachineState) == []


def test_an_urgent_job_preempts_and_its_victims_wait() -> None:
    low = job(1, tasks=12, cpu=16_000, priority=25)
    high = job(2, tasks=3, cpu=16_000, priority=200)
    one = simulation([(0.0, low), (50.0, high)])
    one.run(100.0)
    assert (one.state.running, one.state.pending) == (12, 3)
    assert one.cell.keeper.figures.evictions[EvictionCause.PREEMPTION.value, False] == 3
    assert one.state.departed == {}
    assert one.state.validate() == []


def test_machines_short_of_memory_lose_tasks_that_are_not_prod() -> None:
    # Reservations fall to the usage; then more tasks fit than the machine can hold when they use all their RAM.
    class Growing(Lasting):
        def demand(self, task_id, limit, priority, now):
            result = super().demand(task_id, limit, priority, now)
            result[:, 1] = result[:, 1] // 4 if now < 6_000.0 else result[:, 1]
            return result

    jobs = [
        (0.0, job(1, tasks=8, cpu=2_000, ram=7 * GIB, priority=25)),
        (5_000.0, job(2, tasks=8, cpu=2_000, ram=7 * GIB, priority=25)),
    ]
    one = simulation(jobs, behaviour=Growing({}), machines=1)
    one.run(5_500.0)
    assert one.state.running > 8
    one.run(6_100.0)
    assert one.cell.keeper.figures.as_rows()["out-of-memory kills"] > 0
    settings = dataclasses.replace(Settings(), cell=CellSettings(reclamation="off"))
    strict = simulation(jobs, behaviour=Growing({}), machines=1, settings=settings)
    strict.run(6_100.0)
    assert strict.state.running == 8
    assert strict.cell.keeper.figures.as_rows()["out-of-memory kills"] == 0


def test_tasks_inside_an_alloc_leave_with_it() -> None:
    alloc_set = msgspec.structs.replace(job(1, cpu=8_000, ram=8 * GIB), job_kind="alloc-set")
    inner = job(2, tasks=2, cpu=1_000, ram=GIB, alloc_set=1)
    one = simulation([(0.0, alloc_set), (1.0, inner)])
    one.run(50.0)
    assert one.state.running == 3
    where = one.state.where(1, 0)
    lost = simulation([(0.0, alloc_set), (1.0, inner)], changes=[MachineChange(100.0, where or 0, None)])
    lost.run(200.0)
    assert lost.state.running == 3
    evicted = happened(lost, events.TaskEvicted)
    assert [(event.job_id, event.cause) for event in evicted] == [(2, "other"), (2, "other"), (1, "machine-failure")]
    assert lost.state.validate() == []


def test_a_simulation_without_anything_to_do_says_so() -> None:
    settings = dataclasses.replace(Settings(), look_every_s=0.0)
    one = simulation(settings=settings)
    with pytest.raises(IndexError, match="no event follows"):
        one.step()


def test_tasks_end_at_their_time_limit_and_start_after_their_time() -> None:
    limited, waiting, short = job(1, max_run_s=60.0), job(2, start_after=300.0), job(3, max_run_s=60.0)
    one = simulation([(0.0, limited), (0.0, waiting), (0.0, short)], behaviour=Lasting({1: 500.0, 2: 10.0, 3: 20.0}))
    one.run(BUSY_S)
    placed = {record.event.job_id: record.time for record in one.cell.journal.recent if is_placed(record.event)}
    ended = {
        record.event.job_id: (record.event.how, record.time - placed[record.event.job_id])
        for record in one.cell.journal.recent
        if isinstance(record.event, events.TaskEnded)
    }
    assert placed[2] == 300.0
    assert ended == {1: ("failed", 60.0), 2: ("finished", 10.0), 3: ("finished", 20.0)}


def test_short_tasks_fill_the_gap_before_a_gang() -> None:
    """Simulate two machines. A gang waits for a task with a time limit of 600 s, which ends earlier or at the limit."""
    jobs = [
        (0.0, job(1, cpu=12_000, max_run_s=600.0, ends_within_s=600.0)),
        (10.0, job(2, cpu=10_000, tasks=2, gang=True)),
        (20.0, job(3, cpu=12_000)),
        (30.0, job(4, cpu=12_000, max_run_s=100.0, ends_within_s=100.0)),
    ]
    for lasts_s, starts in ((900.0, 600.0), (400.0, 400.0)):
        one = simulation(jobs, behaviour=Lasting({1: lasts_s, 2: 50.0, 4: 90.0}), machines=2)
        one.run(1200.0)
        placed = {record.event.job_id: record.time for record in one.cell.journal.recent if is_placed(record.event)}
        assert placed[4] < 100.0 < placed[2] < placed[3]
        assert starts <= placed[2] <= starts + 5.0


def is_placed(event: events.Event) -> bool:
    return isinstance(event, events.TaskPlaced)
