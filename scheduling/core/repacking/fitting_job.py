"""The plan that makes a pending task fit.

    pending task ─► machine, and the tasks that leave it: as if it might preempt every task that may move
                         │
                         ├─ they fit on other machines ─► plan
                         └─ they do not ─► the next machine

The scheduler's own search for tasks to preempt chooses the machine and the tasks (`kernels/victims.py`). So as few
tasks as possible leave, those of low priority first, and constraints, devices and whole cores hold.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from scheduling.core.cell.pools import with_rules
from scheduling.core.cell.state import CellState
from scheduling.core.kernels.placement import BREAKING, DIRECT, place
from scheduling.core.placing.equivalence_classes import sort_into_groups
from scheduling.core.placing.kernel_input import tables_of
from scheduling.core.placing.queue import Slots, pending_in_order, pending_of
from scheduling.core.placing.reserved_cores import cores_held
from scheduling.core.repacking.movable_tasks import MovableTasks, MovesLeft
from scheduling.core.repacking.relocation import Relocation
from scheduling.core.repacking.repack_plan import RepackPlan, RepackRules
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.policy import Policy

# So many machines are tried at most.
ATTEMPTS = 24
_ABOVE_ALL = 2**20


def plan_for_job(state: CellState, policy: Policy, rules: RepackRules, *, job_id: int, now: float) -> RepackPlan:
    """Return a plan after which the first pending task of a job fits on a machine. Without steps, the goal is reached
    if the task fits already. Raises `LookupError` if no task of the job waits for a machine.

    A machine does not count if tasks that come earlier in the queue would take the capacity (obstacle `queue`).
    """
    pending = pending_in_order(state.tasks, pending_of(state.tasks, now=now, crashed=state.crashed))
    job = state.tasks.jobs.get(job_id)
    own = np.flatnonzero(state.tasks.job[pending] == job.slot) if job is not None else np.zeros(0, dtype=np.int64)
    if len(own) == 0:
        raise LookupError("no task of the job waits for a machine; nothing has to move")
    return _Search(state, policy, rules, now, pending[: own[0] + 1]).plan()


def why_not_needed(
    state: CellState, relocation: Relocation, rules: RepackRules, *, job_id: int, machine_id: int, leaving: Slots
) -> str:
    """Return why the tasks `leaving` (slots) need not, or should not, leave a machine any more for a task of the job.
    Return an empty text if the task still fits there only without them.
    """
    now = relocation.now
    pending = pending_in_order(state.tasks, pending_of(state.tasks, now=now, crashed=state.crashed))
    job = state.tasks.jobs.get(job_id)
    own = np.flatnonzero(state.tasks.job[pending] == job.slot) if job is not None else np.zeros(0, dtype=np.int64)
    if len(own) == 0:
        return "no task of the job waits for a machine any more"
    search = _Search(state, relocation.policy, rules, now, pending[: own[0] + 1])
    machine = state.machines.slot[machine_id]
    found, victims = search._search(search.closed)
    if found >= 0 and not len(victims):
        return "a task of the job fits without these moves now"
    if not search.fits_after(search.task, machine, leaving):
        return "a task of the job would not fit there after these moves"
    if search.taken_before(machine, leaving):
        return "tasks that come earlier in the queue would take the capacity"
    return ""


class _Search:
    def __init__(self, state: CellState, policy: Policy, rules: RepackRules, now: float, queue: Slots) -> None:
        self.state, self.rules = state, rules
        self.movable = MovableTasks(state, rules)
        self.relocation = Relocation(state, policy, now=now)
        self.task, self.ahead = int(queue[-1]), queue[:-1]
        machines = state.machines
        never = sorted(rules.closed_machines | rules.kept_machines)
        closed = [machines.slot[machine] for machine in never if machine in machines.slot]
        self.closed: Slots = np.array(closed, dtype=np.int64)
        self.obstacles: Counter[str] = Counter()

    def plan(self) -> RepackPlan:
        tried = self.closed
        for _ in range(ATTEMPTS):
            machine, leaving = self._search(tried)
            if machine < 0:
                break
            if not len(leaving):
                return RepackPlan(reached=True)
            tried = np.append(tried, machine)
            if not MovesLeft(self.rules).take(self.movable.disrupted(leaving)):
                self.obstacles["limit"] += 1
                continue
            places = self.relocation.places(leaving, np.append(self.closed, machine))
            if (places < 0).any():
                self.obstacles["no-place"] += 1
            elif self.taken_before(machine, leaving):
                self.obstacles["queue"] += 1
            else:
                return RepackPlan(steps=(self.movable.step(machine, leaving, places),), reached=True)
        up = self.movable.candidates
        self.obstacles["kept-task"] = int(np.count_nonzero(self.movable.busy[up]))
        return RepackPlan(obstacles={code: found for code, found in self.obstacles.items() if found})

    def _search(self, closed: Slots) -> tuple[int, Slots]:
        """Return the slot of the best machine for the task, or -1, and the slots of the tasks that have to leave it."""
        state, tasks, memory = self.state, self.state.tasks, self.relocation.memory
        policy = self.relocation.policy
        state.count_by_limit(policy)
        queue: Slots = np.array([self.task], dtype=np.int64)
        held = cores_held(state, queue)
        sorting = sort_into_groups(state, policy, queue, now=self.relocation.now, cores=held is not None)
        sorting.ceiling[:] = _ABOVE_ALL
        rng = np.random.default_rng(self.task)
        tables = tables_of(state, policy, sorting, memory.sums.follow(state), memory, rng, held)
        tables = tables._replace(knobs=tables.knobs._replace(preempting=True, budgets=True))
        tables.queue.gang_end[:] = 0  # one task of a gang that has begun to start
        tables.queue.books[:] = False
        tables.running.sheltered[:] = self.movable.kept
        for job in tasks.jobs.values():
            tables.running.budget[job.slot] = self.rules.job_moves.get(job.id, 0)
        tables.machines.up[memory.position[closed]] = False
        place(tables, 0)
        position = int(tables.placed.machine[0])
        memory.invalidate(np.append(memory.position[closed], [position] if position >= 0 else []).astype(np.int64))
        none = np.zeros(0, dtype=np.int64)
        if position < 0 or tables.cache.stage[0] >= BREAKING:
            return -1, none
        leaving = none if tables.cache.stage[0] == DIRECT else tables.placed.victims[: tables.placed.victims_to[0]]
        return int(tables.machines.slot[position]), leaving

    def taken_before(self, machine: int, leaving: Slots) -> bool:
        """Return whether a task that comes earlier in the queue would fit on the machine (slot) without the tasks
        `leaving`. Spreading is not considered, so the result may be true although the task may not run there.
        """
        tasks = self.state.tasks
        jobs = tasks.job[self.ahead]
        rules = self.state.pools.of_jobs([tasks.job_at[slot] for slot in jobs.tolist()])[1]
        kinds = np.stack((tasks.shape[self.ahead], tasks.job_by_limit[jobs], rules))
        _, first = np.unique(kinds, axis=1, return_index=True)
        return any(self.fits_after(task, machine, leaving) for task in self.ahead[first].tolist())

    def fits_after(self, task: int, machine: int, leaving: Slots) -> bool:
        """Return whether a task (slot) has enough capacity on a machine (slot) without the tasks `leaving`, and the
        machine satisfies its constraints.
        """
        tasks, machines = self.state.tasks, self.state.machines
        limit = tasks.shapes.limit[tasks.shape[leaving]]
        by_limit = tasks.job_by_limit[tasks.job[leaving]]
        capacity = machines.capacity[machine]
        free: Ints = capacity - machines.reserved[machine] + tasks.reservation[leaving].sum(axis=0)
        if tasks.job_by_limit[tasks.job[task]]:
            free = np.minimum(free, capacity - machines.prod_limit[machine] + limit[by_limit].sum(axis=0))
        shape = tasks.shape[task]
        memory = self.relocation.memory
        wanted = with_rules(tasks.shapes.requirement[shape], self.state.pools.of_job(tasks.job_at[tasks.job[task]]))
        demands = tuple(c for c in wanted.constraints if c.hard)
        enough = bool((tasks.shapes.limit[shape] <= free).all())
        return enough and bool(memory.allowed(demands)[memory.position[machine]])
