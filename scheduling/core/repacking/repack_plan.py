"""The plan of a re-packing, and the rules that bound it.

A re-packing moves running tasks to other machines, so that whole machines become free or a pending task fits. A plan
says which tasks leave which machine. It does not decide where the scheduler places them: `to_machine` is the machine
that the scheduler would choose at the time of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from scheduling.core.vocabulary.requirement import split_task_id


class Move(msgspec.Struct, frozen=True):
    """A task that leaves its machine. `inside`: how many tasks inside it leave with it, by job id, if it is an alloc.
    `to_machine`: the id of the machine that can hold it now.
    """

    task_id: int
    to_machine: int
    inside: tuple[tuple[int, int], ...] = ()


class MachineMoves(msgspec.Struct, frozen=True):
    """A machine and the tasks that leave it, in one step of the plan."""

    machine_id: int
    moves: tuple[Move, ...] = ()

    @property
    def disrupted(self) -> Counter[int]:
        """Return how many tasks of each job leave the machine, by job id. Tasks inside allocs count too."""
        result: Counter[int] = Counter()
        for move in self.moves:
            result[split_task_id(move.task_id)[0]] += 1
            for job, number in move.inside:
                result[job] += number
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackRules:
    """What a re-packing may do.

    `most_moves`: how many tasks it moves at most. `most_priority`: tasks of a higher priority stay. `job_moves`: how
    many tasks of each job may move, by job id; of jobs that are not named none may. `kept_jobs`: the ids of jobs whose
    tasks stay, for example because an update of the job is in progress. `kept_machines`: the ids of machines from which
    no task moves. `closed_machines`: the ids of machines that receive no tasks.
    """

    most_moves: int
    most_priority: int
    job_moves: Mapping[int, int]
    kept_jobs: frozenset[int] = frozenset()
    kept_machines: frozenset[int] = frozenset()
    closed_machines: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackPlan:
    """The steps of a re-packing, in order: one machine per step. `spares`: further machines, of which one is used for
    each step that is no longer possible when it should begin. `already_free`: how many of the machines have no task.

    If the goal cannot be reached, `obstacles` has the reasons: how many machines were left out for each of them. The
    codes are `kept-task` (a task there must not move), `limit` (the moves would exceed a limit of the re-packing),
    `no-place` (a task fits on no other machine), `queue` (tasks earlier in the queue would take the capacity) and
    `time` (1 if the search ended early).
    """

    steps: tuple[MachineMoves, ...] = ()
    spares: tuple[MachineMoves, ...] = ()
    already_free: int = 0
    reached: bool = False
    obstacles: Mapping[str, int] = field(default_factory=dict)

    @property
    def moves(self) -> int:
        """Return how many tasks the plan moves without spare machines. Tasks inside allocs count too."""
        return sum(disrupted(self.steps).values())


def disrupted(steps: Iterable[MachineMoves]) -> Counter[int]:
    """Return how many tasks of each job leave their machines in these steps, by job id."""
    result: Counter[int] = Counter()
    for step in steps:
        result.update(step.disrupted)
    return result
