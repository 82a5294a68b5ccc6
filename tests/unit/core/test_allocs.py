"""Tests of tasks inside alloc sets (§2.4): they run on the alloc's machine, within its limit, and nowhere else.

An alloc is a reserved part of a machine. An alloc set is a job of allocs.
"""

from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.cell.state import CellState
from scheduling.core.explaining.wording import sentence
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment, Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Group, Requirement, task_id

SET, INNER, OTHER = 1, 2, 3


class Cell:
    """A cell of two machines with 10 cores, 10 units of RAM and 4 accelerators, and allocs of 4 cores."""

    def __init__(self, machines: int = 2) -> None:
        self.state = CellState()
        self.revision = 0
        for number in range(1, machines + 1):
            self.apply(
                events.MachineSet(
                    machine_id=number,
                    hostname=f"m{number}",
                    address="127.0.0.1",
                    capacity=(10_000, 10, 10, 0, 4000, 0),
                    port_low=20_000,
                    port_high=20_003,
                )
            )

    def apply(self, event: events.Event) -> None:
        self.revision += 1
        self.state.apply(event, revision=self.revision, time=float(self.revision))

    def submit(
        self,
        job: int,
        *,
        tasks: int,
        cpu: int,
        ports: int = 0,
        accelerators: int = 0,
        alloc_set: int = 0,
        priority: int = 200,
        kind: str = "job",
        gang: bool = False,
        max_per_machine: int = 0,
    ) -> None:
        asked = Requirement((cpu, 0, 0, 0, accelerators, ports), max_per_machine=max_per_machine)
        self.apply(
            events.JobSubmitted(
                job_id=job,
                uid=f"{job:032x}",
                tenant_id=1,
                tenant="t",
                name=f"j{job}",
                job_kind=kind,
                priority=priority,
                latency_sensitive=True,
                spec_version=1,
                groups=(Group(asked, ((0, tasks - 1),)),),
                alloc_set=alloc_set,
                gang=gang,
            )
        )

    def allocs(self, tasks: int, *, cpu: int = 4000, accelerators: int = 0, priority: int = 200) -> None:
        self.submit(SET, tasks=tasks, cpu=cpu, accelerators=accelerators, kind="alloc-set", priority=priority)

    def plan(self, policy: Policy | None = None) -> Plan:
        return schedule_pass(self.state, policy or Policy(), now=0.0, rng=np.random.default_rng(1))

    def place(self, policy: Policy | None = None) -> list[Assignment]:
        plan = self.plan(policy)
        for one in plan.assignments:
            for job, index in one.victims:
                self.evict(job, index)
            self.apply(
                events.TaskPlaced(
                    job_id=one.job_id,
                    index=one.index,
                    machine_id=one.machine_id,
                    incarnation=1,
                    ports=one.ports,
                    alloc=one.alloc,
                    devices=one.devices,
                )
            )
        assert self.state.validate() == []
        return list(plan.assignments)

    def evict(self, job: int, index: int) -> None:
        machine = self.state.where(job, index)
        assert machine is not None
        self.apply(
            events.TaskEvicted(job_id=job, index=index, machine_id=machine, incarnation=1, cause="other", gone=True)
        )


def test_a_task_waits_until_an_alloc_of_its_set_runs() -> None:
    cell = Cell()
    cell.allocs(1)
    cell.submit(INNER, tasks=1, cpu=1000, alloc_set=SET)
    assert [one.job_id for one in cell.place()] == [SET]
    (inner,) = cell.place()
    assert (inner.job_id, inner.alloc, inner.machine_id) == (INNER, task_id(SET, 0), cell.state.where(SET, 0))


def test_nobody_is_put_beside_the_allocs_or_beyond_their_limit() -> None:
    cell = Cell()
    cell.allocs(2)
    cell.place()
    cell.submit(INNER, tasks=9, cpu=1000, alloc_set=SET)
    placed = cell.place()
    assert len(placed) == 8
    assert sorted(one.alloc for one in placed) == sorted([task_id(SET, 0)] * 4 + [task_id(SET, 1)] * 4)


def test_a_task_that_lives_in_an_alloc_takes_nothing_of_its_machine() -> None:
    cell = Cell(machines=1)
    cell.allocs(2)
    cell.place()
    cell.submit(INNER, tasks=8, cpu=1000, alloc_set=SET)
    cell.place()
    cell.submit(OTHER, tasks=2, cpu=1000)
    assert len(cell.place()) == 2


def test_tasks_go_around_the_allocs() -> None:
    cell = Cell()
    cell.allocs(2)
    cell.place()
    cell.submit(INNER, tasks=2, cpu=1000, alloc_set=SET)
    assert len({one.alloc for one in cell.place()}) == 2


def test_tasks_follow_their_alloc_to_another_machine() -> None:
    cell = Cell()
    cell.allocs(1)
    cell.place()
    cell.submit(INNER, tasks=2, cpu=1000, alloc_set=SET)
    cell.place()
    here = cell.state.where(SET, 0)
    for index in range(2):
        cell.evict(INNER, index)
    cell.evict(SET, 0)
    cell.apply(events.MachineState(machine_id=here or 0, state="down"))
    cell.place()
    assert len(cell.place()) == 2
    assert cell.state.where(INNER, 0) == cell.state.where(SET, 0) != here


def test_a_task_that_comes_into_an_alloc_keeps_its_limit_though_another_left_its_slot_just_before() -> None:
    """Apply a batch of events in which a task enters an alloc after another left the same slot of the tables.

    The state must equal the one after each event was applied alone.
    """
    cell, one_by_one = Cell(), Cell()
    news: list[events.Event] = []
    for one in (cell, one_by_one):
        one.allocs(1)
        one.place()
        one.submit(OTHER, tasks=2, cpu=50)
    asked = Group(Requirement((1000, 0, 0, 0, 0, 0)), ((0, 0),))
    for index in range(2):
        news.append(events.TaskPlaced(job_id=OTHER, index=index, machine_id=1, incarnation=1))
        news.append(events.TaskEnded(job_id=OTHER, index=index, machine_id=1, incarnation=1, how="killed", gone=True))
    news += [
        events.JobEnded(job_id=OTHER, how="killed"),
        events.JobSubmitted(
            job_id=INNER,
            uid="2",
            tenant_id=1,
            tenant="t",
            name="inner",
            job_kind="job",
            priority=200,
            latency_sensitive=True,
            spec_version=1,
            groups=(asked,),
            alloc_set=SET,
        ),
        events.TaskPlaced(
            job_id=INNER, index=0, machine_id=cell.state.where(SET, 0) or 0, incarnation=1, alloc=task_id(SET, 0)
        ),
    ]
    for event in news:
        one_by_one.apply(event)
    cell.state.apply_all([(event, one_by_one.revision, 0.0) for event in news])
    assert cell.state.diff(one_by_one.state) == []


def test_an_alloc_on_a_draining_machine_takes_nobody_in() -> None:
    cell = Cell(machines=1)
    cell.allocs(1)
    cell.place()
    cell.apply(events.MachineState(machine_id=1, state="draining"))
    cell.submit(INNER, tasks=1, cpu=1000, alloc_set=SET)
    assert cell.place() == []


def test_an_alloc_that_the_plan_preempts_takes_nobody_in() -> None:
    cell = Cell(machines=1)
    cell.allocs(1, priority=100)
    cell.place()
    cell.submit(INNER, tasks=1, cpu=1000, alloc_set=SET, priority=100)
    cell.submit(OTHER, tasks=1, cpu=9000, priority=200)
    (placed,) = cell.plan().assignments
    assert (placed.job_id, placed.victims) == (OTHER, ((SET, 0),))


def test_port_numbers_come_from_the_machine_and_are_given_once() -> None:
    cell = Cell(machines=1)
    cell.allocs(1)
    cell.place()
    cell.submit(OTHER, tasks=2, cpu=100, ports=1)
    cell.submit(INNER, tasks=3, cpu=100, ports=1, alloc_set=SET)
    numbers = [port for one in cell.place() for port in one.ports]
    assert sorted(numbers) == [20_000, 20_001, 20_002, 20_003]


def test_accelerators_are_those_of_the_alloc() -> None:
    cell = Cell(machines=1)
    cell.allocs(1, accelerators=2000)
    cell.place()
    cell.submit(INNER, tasks=5, cpu=100, accelerators=500, alloc_set=SET)
    placed = cell.place()
    assert sorted(one.devices for one in placed) == [(0,), (0,), (1,), (1,)]


def test_max_per_machine_counts_inside_allocs_too() -> None:
    cell = Cell()
    cell.allocs(4)
    cell.place()
    cell.submit(INNER, tasks=4, cpu=100, alloc_set=SET, max_per_machine=1)
    assert sorted(one.machine_id for one in cell.place()) == [1, 2]


@pytest.mark.parametrize(("tasks", "placed"), [(4, 4), (5, 0)])
def test_a_gang_enters_together_or_not_at_all(tasks: int, placed: int) -> None:
    cell = Cell()
    cell.allocs(1)
    cell.place()
    cell.submit(INNER, tasks=tasks, cpu=1000, alloc_set=SET, gang=True)
    assert len(cell.place()) == placed
    cell.submit(OTHER, tasks=1, cpu=1000, alloc_set=SET)
    assert len(cell.place()) == (0 if placed else 1)


def test_a_pass_places_about_as_many_as_it_may_and_tears_no_gang() -> None:
    cell = Cell()
    cell.allocs(2)
    cell.place()
    cell.submit(INNER, tasks=1, cpu=100, alloc_set=SET, priority=201)
    cell.submit(OTHER, tasks=3, cpu=100, alloc_set=SET, gang=True)
    assert [one.job_id for one in cell.place(Policy(max_assignments=1))] == [INNER]
    assert len(cell.place(Policy(max_assignments=1))) == 3


def test_a_task_that_fits_nowhere_does_not_use_up_what_a_pass_may_place() -> None:
    cell = Cell()
    cell.allocs(2)
    cell.place()
    cell.submit(INNER, tasks=5, cpu=5000, alloc_set=SET, priority=201)
    cell.submit(OTHER, tasks=1, cpu=100, alloc_set=SET)
    plan = cell.plan(Policy(max_assignments=2))
    assert [one.job_id for one in plan.assignments] == [OTHER]
    assert not plan.stats.cut


def test_a_gang_that_gave_up_leaves_its_place_to_others() -> None:
    cell = Cell()
    cell.allocs(1, cpu=500)
    cell.place()
    two, one = Requirement((200, 0, 0, 0, 0, 0)), Requirement((150, 0, 0, 0, 0, 0))
    cell.apply(
        events.JobSubmitted(
            job_id=INNER,
            uid="2" * 32,
            tenant_id=1,
            tenant="t",
            name="gang",
            job_kind="job",
            priority=200,
            latency_sensitive=True,
            spec_version=1,
            groups=(Group(two, ((0, 1),)), Group(one, ((2, 2),))),
            alloc_set=SET,
            gang=True,
        )
    )
    cell.submit(OTHER, tasks=1, cpu=150, alloc_set=SET, priority=100)
    assert [one.job_id for one in cell.place()] == [OTHER]


def test_slots_that_others_left_in_the_same_batch_hold_nothing_of_theirs() -> None:
    cell = Cell(machines=1)
    cell.allocs(1)
    cell.submit(OTHER, tasks=1, cpu=250)
    cell.place()
    asked = Requirement((50, 0, 0, 0, 0, 0))
    news: list[events.Event] = [
        events.TaskEnded(job_id=OTHER, index=0, machine_id=1, incarnation=1, how="finished", gone=True),
        events.JobEnded(job_id=OTHER, how="finished"),
        events.JobSubmitted(
            job_id=INNER,
            uid="2" * 32,
            tenant_id=1,
            tenant="t",
            name="in",
            job_kind="job",
            priority=200,
            latency_sensitive=True,
            spec_version=1,
            groups=(Group(asked, ((0, 0),)),),
            alloc_set=SET,
        ),
        events.TaskPlaced(job_id=INNER, index=0, machine_id=1, incarnation=1, alloc=task_id(SET, 0)),
    ]
    cell.state.apply_all((event, cell.revision + n, 0.0) for n, event in enumerate(news, start=1))
    assert cell.state.validate() == []


def test_an_alloc_is_spared_whose_tasks_have_no_disruption_left() -> None:
    cell = Cell()
    cell.allocs(2, cpu=9000, priority=100)
    cell.place()
    asked = Requirement((1000, 0, 0, 0, 0, 0))
    cell.apply(
        events.JobSubmitted(
            job_id=INNER,
            uid="2" * 32,
            tenant_id=1,
            tenant="t",
            name="in",
            job_kind="job",
            priority=100,
            latency_sensitive=True,
            spec_version=1,
            groups=(Group(asked, ((0, 2),)),),
            alloc_set=SET,
            disruption_budget=1,
        )
    )
    inside = [one.alloc for one in cell.place()]
    crowded = max(set(inside), key=inside.count)
    cell.submit(OTHER, tasks=1, cpu=9000, priority=200)
    (placed,) = cell.plan().assignments
    assert len(placed.victims) == 1
    assert task_id(*placed.victims[0]) != crowded


def test_a_task_that_fits_in_no_alloc_reads_the_reason() -> None:
    cell = Cell()
    cell.allocs(2)
    cell.submit(INNER, tasks=1, cpu=1000, alloc_set=SET)
    (why,) = cell.plan().unplaced
    assert sentence(why) == ("1 task can't be placed on any of 2 machines: no alloc of the alloc set runs.")
    cell.place()
    cell.place()
    cell.submit(OTHER, tasks=2, cpu=3500, alloc_set=SET)
    cell.place()
    (why,) = cell.plan().unplaced
    assert sentence(why) == (
        "1 task can't be placed on any of 2 machines: 2 allocs of the alloc set with less than 3.5 cores of cpu left"
        " (at most 3 cores)."
    )
