"""Tests of where the search for machines begins: anywhere while capacity is free, at one place when it is scarce."""

from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.cell.state import CellState
from scheduling.core.placing.equivalence_classes import sort_into_groups
from scheduling.core.placing.queue import pending_in_order, pending_of
from scheduling.core.placing.search_start import walks
from scheduling.core.placing.total_free_capacity import free_capacity
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.policy import Policy, Search
from scheduling.core.vocabulary.requirement import Group, Requirement

MACHINES = 1000
CLASSES = 8


def _starts(policy: Policy, *, tasks: int, priority: int = 200, machines: int = MACHINES) -> list[int]:
    return _walks(policy, tasks=tasks, priority=priority, machines=machines)[0]


def _walks(policy: Policy, *, tasks: int, priority: int = 200, machines: int = MACHINES) -> tuple[list[int], list[int]]:
    """Return for each class of tasks the machine at which the search begins, and the number of further machines
    compared.

    Each of the CLASSES classes asks for about `tasks` thousandths of the CPU of a cell of 1000 machines.
    """
    state = CellState()
    for number in range(1, machines + 1):
        joined = events.MachineSet(
            machine_id=number, hostname=f"m{number}", address="127.0.0.1", capacity=(1000, 1000, 1000, 0, 0, 0)
        )
        state.apply(joined, revision=number, time=0.0)
    groups = tuple(
        Group(Requirement((1000 - c, 1, 1, 0, 0, 0)), ((c * tasks, (c + 1) * tasks - 1),)) for c in range(CLASSES)
    )
    submitted = events.JobSubmitted(
        job_id=1,
        uid="1" * 32,
        tenant_id=1,
        tenant="t",
        name="j",
        job_kind="job",
        priority=priority,
        latency_sensitive=True,
        spec_version=1,
        groups=groups,
    )
    state.apply(submitted, revision=state.revision + 1, time=0.0)
    slots = pending_in_order(state.tasks, pending_of(state.tasks, policy.workload))
    sorting = sort_into_groups(state, policy, slots, now=0.0)
    limit = sorting.limit
    start, further = walks(
        state, policy, limit, sorting.by_limit, sorting.of_task, free_capacity(state), np.random.default_rng(1)
    )
    return start.tolist(), further.tolist()


@pytest.mark.parametrize("priority", [200, 0])
def test_a_task_that_asks_for_little_begins_anywhere(priority: int) -> None:
    assert len(set(_starts(Policy(), tasks=80, priority=priority))) > CLASSES / 2


@pytest.mark.parametrize("priority", [200, 0])
def test_a_task_that_asks_for_most_of_the_room_begins_at_one_place(priority: int) -> None:
    assert len(set(_starts(Policy(), tasks=110, priority=priority))) == 1


def test_epvm_spreads_however_much_is_asked_for() -> None:
    assert len(set(_starts(Policy(scorer="e-pvm"), tasks=110))) > CLASSES / 2


def test_without_randomisation_all_begin_at_the_first() -> None:
    assert set(_starts(Policy(search=Search(randomise=False)), tasks=80)) == {0}


def test_a_cell_without_machines_has_no_walks() -> None:
    assert set(_starts(Policy(), tasks=1, machines=0)) == {0}


@pytest.mark.parametrize(("tasks", "further"), [(80, 0), (110, 4), (130, 0)])
def test_tasks_look_further_when_capacity_is_tight_but_enough(tasks: int, further: int) -> None:
    assert set(_walks(Policy(), tasks=tasks)[1]) == {further}
