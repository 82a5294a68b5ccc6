"""`pass`: milliseconds of a scheduling pass over a loaded cell, including the events since the last pass (§3.4).

The cell has 10,000 machines of the real cell (`tests.bench.cells`), packed until no more task fits. 1,000 tasks of 50
classes (different requests) are pending: 40 classes hardly fit on any machine, and 10 are common. Each round does this:

    1,000 random tasks finish ─► events applied ─► schedule_pass ─► placements applied ─► queue filled up to 1,000 again
                                 └─────── timed ───────┘            └ `-with-commit` ┘    └───── never timed ─────┘

As in a master, the passes share a cache, and each explains only a few classes. After every tenth round, the finished
tasks are placed again where they fit, so that the cell stays full. This is not timed.

Cases: `loaded-10k-p50`, `-p99`: a round as above. `loaded-10k-with-commit-p50`, `-p99`: the time to apply the
placements is included. `unchanged-p50`: the same queue without new events. `empty-p50`: no pending tasks.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import numpy as np

from quota.vocabulary.resources import CPU, RAM
from scheduling.core.cell.tasks import PENDING, RUNNING
from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.pass_ import schedule_pass
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Group, Requirement, split_task_id
from tests.bench import cells

MACHINES, PENDING_TASKS, CLASSES, LARGE_CLASSES, FINISHING = 10_000, 1_000, 50, 40, 1_000
ROUNDS = 200
REFILL_EVERY = 10
WARM_UP = 3
QUIET_ROUNDS = 50
SEED = 2011
FIRST_JOB = 1_000_000  # id of the first job that fills the queue


def measure() -> Iterator[dict[str, Any]]:
    rounds = 30 if os.environ.get("BENCH_SMALL") == "1" else ROUNDS
    cell = LoadedCell()
    for _ in range(WARM_UP):
        cell.round()
    loaded, committed = [], []
    placed = 0
    for number in range(rounds):
        if number % REFILL_EVERY == 0:
            cell.refill()
        timed, applied, plan = cell.round()
        loaded.append(timed)
        committed.append(timed + applied)
        placed += len(plan.assignments)
    facts = {
        "machines": MACHINES,
        "running": cell.state.running,
        "pending": PENDING_TASKS,
        "classes": CLASSES,
        "finished": FINISHING,
        "placed": round(placed / rounds, 1),
        "rounds": rounds,
    }
    for case, times in (("loaded-10k", loaded), ("loaded-10k-with-commit", committed)):
        yield _result(f"{case}-p50", times, 50, facts)
        yield _result(f"{case}-p99", times, 99, facts)
    quiet = [cell.plan()[0] for _ in range(QUIET_ROUNDS + 1)][1:]
    yield _result("unchanged-p50", quiet, 50, {"pending": cell.state.pending, "rounds": QUIET_ROUNDS})
    cell.drop_queue()
    empty = [cell.plan()[0] for _ in range(QUIET_ROUNDS + 1)][1:]
    yield _result("empty-p50", empty, 50, {"pending": 0, "rounds": QUIET_ROUNDS})


def _result(case: str, times: Sequence[float], percentile: int, facts: dict[str, Any]) -> dict[str, Any]:
    value = float(np.percentile(times, percentile)) * 1000
    return {"case": case, "value": round(value, 3), "unit": "ms", "better": "lower", **facts}


class LoadedCell:
    """A full cell in memory, and code that finishes tasks, commits plans and submits tasks in place of the other
    processes."""

    def __init__(self, machines: int = MACHINES, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.rng = np.random.default_rng(SEED)
        self.policy = Policy(max_assignments=2**40)
        self.now = 0.0
        self.memory, self.explainer = PassCache(), Explainer(ExplainBudget())  # as in a master
        whole = cells.google2011()
        chosen = np.sort(self.rng.permutation(len(whole.machines))[:machines])
        self.state = replace(whole, machines=tuple(whole.machines[m] for m in chosen)).load()
        _, plan = self.plan()
        self.apply(self._placements(plan))
        self.queue = self._choose_classes()
        self.drop_queue()
        self.finished: list[events.TaskEnded] = []
        self._submit_classes()
        self._fill_queue()
        gc.collect()
        gc.freeze()

    def apply(self, news: Sequence[events.Event]) -> None:
        first = self.state.revision + 1
        self.state.apply_all((event, first + i, self.now) for i, event in enumerate(news))

    def plan(self) -> tuple[float, Plan]:
        """Run one scheduling pass. Return its seconds and the plan."""
        began = self.clock()
        plan = schedule_pass(
            self.state, self.policy, now=self.now, rng=self.rng, memory=self.memory, explainer=self.explainer
        )
        return self.clock() - began, plan

    def round(self) -> tuple[float, float, Plan]:
        """Finish some tasks, run a pass, and apply its plan.

        Return the seconds to apply the ends and run the pass, the seconds to apply the plan, and the plan.
        """
        self.now += 1.0
        news = self._finishing()
        began = self.clock()
        self.apply(news)
        absorbed = self.clock() - began
        passed, plan = self.plan()
        placements = self._placements(plan)
        began = self.clock()
        self.apply(placements)
        applied = self.clock() - began
        self.finished += news
        self._fill_queue()
        return absorbed + passed, applied, plan

    def _finishing(self) -> list[events.TaskEnded]:
        tasks = self.state.tasks
        chosen = self.rng.choice(np.flatnonzero(tasks.state == RUNNING), size=FINISHING, replace=False)
        result = []
        for slot in chosen.tolist():
            job, index = split_task_id(int(tasks.id[slot]))
            machine = int(self.state.machines.id[tasks.machine[slot]])
            incarnation = int(tasks.incarnation[slot])
            result.append(
                events.TaskEnded(
                    job_id=job, index=index, machine_id=machine, incarnation=incarnation, how="finished", gone=True
                )
            )
        return result

    def _placements(self, plan: Plan) -> list[events.Event]:
        result: list[events.Event] = []
        for one in plan.assignments:
            for job, index in one.victims:
                incarnation = int(self.state.tasks.incarnation[self.state.tasks.jobs[job].tasks[index]])
                result.append(
                    events.TaskEvicted(
                        job_id=job,
                        index=index,
                        machine_id=one.machine_id,
                        incarnation=incarnation,
                        cause="preemption",
                        gone=True,
                    )
                )
            result.append(self._placed(one.job_id, one.index, one.machine_id, one.ports))
        return result

    def _placed(self, job: int, index: int, machine: int, ports: tuple[int, ...] = ()) -> events.TaskPlaced:
        slot = self.state.tasks.jobs[job].tasks[index]
        incarnation = int(self.state.tasks.incarnation[slot]) + 1
        return events.TaskPlaced(job_id=job, index=index, machine_id=machine, incarnation=incarnation, ports=ports)

    # --- the queue

    def _choose_classes(self) -> list[tuple[int, Requirement]]:
        """Return (priority, requirement) of the 50 classes of the queue: large ones that hardly fit anywhere, and
        common ones.

        The large ones are pending classes of the packed cell, enlarged to between 3/4 and all of the most common
        machine.
        """
        waiting, running = self._classes(PENDING), self._classes(RUNNING)
        sizes, number = np.unique(self.state.machines.capacity[self.state.machines.order], axis=0, return_counts=True)
        usual = sizes[number.argmax()].tolist()
        large = [
            (priority, _grown(requirement, usual, share))
            for (priority, requirement), share in zip(
                sorted(waiting, key=lambda pair: -waiting[pair]), np.linspace(0.75, 1.0, LARGE_CLASSES), strict=False
            )
        ]
        return [*large, *sorted(running, key=lambda pair: -running[pair])[: CLASSES - len(large)]]

    def _classes(self, state: int) -> dict[tuple[int, Requirement], int]:
        """Return the number of tasks in this state for each (priority, requirement)."""
        tasks = self.state.tasks
        slots = np.flatnonzero(tasks.state == state)
        pairs = np.stack([tasks.job_priority[tasks.job[slots]].astype(np.int64), tasks.shape[slots]])
        unique, number = np.unique(pairs, axis=1, return_counts=True)
        return {
            (int(priority), tasks.shapes.requirement[shape]): n
            for (priority, shape), n in zip(unique.T.tolist(), number.tolist(), strict=True)
        }

    def _submit_classes(self) -> None:
        self.next_index = [count() for _ in self.queue]
        for number, (priority, _) in enumerate(self.queue):
            self.apply(
                [
                    events.JobSubmitted(
                        job_id=FIRST_JOB + number,
                        uid=f"{FIRST_JOB + number:032x}",
                        tenant_id=number % 40 + 1,
                        tenant=f"t{number % 40:02d}",
                        name=f"queue{number}",
                        job_kind="job",
                        priority=priority,
                        latency_sensitive=priority >= cells.PROD_FROM,
                        spec_version=1,
                        groups=(),
                    )
                ]
            )

    def _fill_queue(self) -> None:
        """Submit tasks until `PENDING_TASKS` are pending, in equal parts for each class. Preempted tasks are pending
        too."""
        tasks = self.state.tasks
        jobs = [tasks.jobs[FIRST_JOB + number] for number in range(CLASSES)]
        have = [int((tasks.state[job.tasks] == PENDING).sum()) for job in jobs]
        left = PENDING_TASKS - tasks.pending
        for number, (_, requirement) in enumerate(self.queue):
            more = min(left, PENDING_TASKS // CLASSES - have[number])
            if more > 0:
                indexes = [next(self.next_index[number]) for _ in range(more)]
                group = Group(requirement, ((indexes[0], indexes[-1]),))
                self.apply([events.TasksAdded(job_id=FIRST_JOB + number, groups=(group,), spec_version=1)])
                left -= more

    def drop_queue(self) -> None:
        tasks = self.state.tasks
        pending = [split_task_id(int(tasks.id[slot])) for slot in np.flatnonzero(tasks.state == PENDING)]
        self.apply(
            [
                events.TaskEnded(job_id=job, index=index, machine_id=0, incarnation=0, how="killed")
                for job, index in pending
            ]
        )

    def refill(self) -> None:
        """Submit the finished tasks again and place them on their old machines if they fit there. Then run a pass."""
        machines = self.state.machines
        for ended in self.finished:
            job = self.state.tasks.jobs[ended.job_id]
            limit = self.state.tasks.shapes.limit[self.state.tasks.shape[job.tasks[ended.index]]]
            slot = machines.slot[ended.machine_id]
            room = np.minimum(machines.capacity[slot] - machines.reserved[slot], machines.capacity[slot])
            if (limit <= room).all():
                revived = events.TaskRevived(job_id=ended.job_id, index=ended.index, spec_version=1)
                self.apply([revived])
                self.apply([self._placed(ended.job_id, ended.index, ended.machine_id)])
        self.finished = []
        self.plan()


def _grown(requirement: Requirement, machine: Sequence[int], share: float) -> Requirement:
    """Return the requirement, scaled so that its CPU or RAM, whichever is scarcer, is `share` of the machine's."""
    factor = share / max(requirement.limit[r] / machine[r] for r in (CPU, RAM))
    limit = tuple(min(int(value * factor), full) for value, full in zip(requirement.limit, machine, strict=True))
    return msgspec.structs.replace(requirement, limit=limit)
