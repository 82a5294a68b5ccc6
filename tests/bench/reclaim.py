"""`reclaim`: the speed of reclamation, and the capacity that it frees (§5.5).

Reclamation estimates what tasks will use, and lowers their reservations, so that other tasks fit. Cases:
* `estimate-150k`: ms of one estimate for 150,000 tasks in one thread;
* `cycle-150k`: ms of one cycle: the usage of 12,260 machines is read from Redis, estimates are made, and all changes
  are written to PostgreSQL with durable commits. All estimates fall at once, which is the largest number of changes.
  `look_ms`, `longest_ms`: the parts during which a scheduling pass must wait. `cpu_ms`: CPU time of this process.
  `quiet_ms`: a cycle without changes. `absorb_ms`: the time to apply the changes to the state in memory.
  `own_process`: the cost of another copy of the state, if the cycle ran in a separate process;
* `placeable`, `-baseline`, `-aggressive`: three settings of reclamation. The real cell (`tests.bench.cells`) is packed
  by limits. Its tasks then use as much as tasks of their priority band in Google's trace of 2019. The value is the
  share, in per cent, of the unplaced tasks that find a machine after the reservations have fallen and several passes
  have run. `first`: the share after one pass. `changes`: the number of reservations that were written, at the pace of
  `ReservationPace`;
* `placeable-unpaced`: as `placeable`, but every change that matters is written, as before decision 0313.

    BENCH_CASES=placeable,estimate     run only cases whose name begins with one of these
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import CPU, RAM
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import PENDING, RUNNING
from scheduling.core.pass_ import schedule_pass
from scheduling.core.reclamation.pacing import ReservationPace
from scheduling.core.reclamation.usage_history import KINDS, Reservations, Samples, UsageHistory, most_urgent
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reclamation_presets import AGGRESSIVE, BASELINE, MEDIUM, Preset
from scheduling.core.vocabulary.requirement import split_task_id
from tests.bench import cells
from tests.bench.wanted import wanted

RUNS = 5
TASKS = 150_000
EVERY_S = 5.0
# Mean usage / request in Google's trace of 2019: (lowest priority, CPU, RAM). Single tasks differ widely from it.
RATIOS = ((0, 0.15, 0.12), (100, 0.34, 0.36), (116, 0.61, 0.48), (120, 0.42, 0.63))
CONCENTRATION, WOBBLE = 4.0, 0.2
SETTLING_S, LOOK_S = 5400.0, 30.0
ROUNDS = 8
PLACEABLE = {
    "placeable": (MEDIUM, True),
    "placeable-baseline": (BASELINE, True),
    "placeable-aggressive": (AGGRESSIVE, True),
    "placeable-unpaced": (MEDIUM, False),
}


def measure() -> Iterator[dict[str, Any]]:
    if wanted(["estimate-150k"]):
        yield estimate()
    if wanted(["cycle-150k"]):
        from tests.bench.reclaim_cycle import cycle

        yield cycle()
    for name in wanted(list(PLACEABLE)):
        preset, paced = PLACEABLE[name]
        yield placeable(name, preset, ReservationPace() if paced else None)


def timed(case: str, times: list[float], **more: Any) -> dict[str, Any]:
    """Return a result with the median of `times` (seconds) in ms. The first time is a warm-up and is left out."""
    counted = [1000 * each for each in times[1:]]
    return {
        "case": case,
        "value": round(statistics.median(counted), 2),
        "unit": "ms",
        "better": "lower",
        "min": round(min(counted), 2),
        "max": round(max(counted), 2),
        "runs": len(counted),
        **more,
    }


# --- estimate


def estimate() -> dict[str, Any]:
    used = Used(_full_cell(), np.random.default_rng(0))
    history, times, cpu, lowered = UsageHistory(), [], [], 0
    for _ in range(61):  # until all reservations fall
        history.look(used.state.tasks, used.samples(), MEDIUM, passed_s=EVERY_S)
    for _ in range(RUNS + 1):
        samples = used.samples()
        began, spent = time.perf_counter(), time.process_time()
        found = history.look(used.state.tasks, samples, MEDIUM, passed_s=EVERY_S)
        most_urgent(found, at_most=5000)
        times.append(time.perf_counter() - began)
        cpu.append(time.process_time() - spent)
        lowered = int(found.lowered.sum())
    cpu_ms = round(1000 * statistics.median(cpu[1:]), 2)
    return timed("estimate-150k", times, tasks=len(used.slots), lowered=lowered, cpu_ms=cpu_ms)


def _full_cell() -> CellState:
    """Return a state with the machines of the real cell and 150,000 tasks, distributed over them in turn."""
    real = cells.google2011(constraints=False)
    state = CellState()
    for event in real.machines:
        state.apply(event, revision=0, time=0.0)
    left, machine = TASKS, 0
    for job in real.jobs * 2:
        size = sum(group.size for group in job.groups)
        if size > left:
            continue
        left -= size
        again = f"{job.name}-{left}"
        submitted = events.JobSubmitted(
            **{field: getattr(job, field) for field in job.__struct_fields__}
            | {"job_id": 10_000_000 - left, "name": again}
        )
        state.apply(submitted, revision=0, time=0.0)
        for index in range(size):
            machine = machine % len(real.machines) + 1
            placed = events.TaskPlaced(job_id=submitted.job_id, index=index, machine_id=machine, incarnation=1)
            state.apply(placed, revision=0, time=0.0)
    return state


@dataclass
class Used:
    """The simulated usage of every running task, drawn from the mean usage of its priority band."""

    state: CellState
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self._ratio: dict[int, NDArray[np.float64]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read which tasks run now, and draw the usage of tasks that are new."""
        tasks = self.state.tasks
        self.slots = np.flatnonzero(tasks.state == RUNNING)
        ids = tasks.id[self.slots].tolist()
        new = [n for n, identity in enumerate(ids) if identity not in self._ratio]
        priority = tasks.job_priority[tasks.job[self.slots[new]]]
        drawn = self._draw(priority)
        self._ratio.update((ids[n], drawn[k]) for k, n in enumerate(new))
        self._mean = np.array([self._ratio[identity] for identity in ids]).reshape(-1, 2)
        self._mean = self._mean * tasks.shapes.limit[tasks.shape[self.slots]][:, [CPU, RAM]]
        # Ordered by machine, as the samples from Redis.
        self._order = np.argsort(tasks.machine[self.slots], kind="stable")

    def _draw(self, priority: NDArray[np.int32]) -> NDArray[np.float64]:
        band = np.searchsorted([low for low, _, _ in RATIOS], priority, side="right") - 1
        mean = np.array([[cpu, ram] for _, cpu, ram in RATIOS])[band].reshape(-1, 2)
        return self.rng.beta(CONCENTRATION * mean, CONCENTRATION * (1 - mean))

    def samples(self) -> Samples:
        tasks, order = self.state.tasks, self._order
        demand = np.zeros((len(self.slots), len(KINDS)), dtype=np.int64)
        wobble = self.rng.uniform(1 - WOBBLE, 1 + WOBBLE, size=(len(self.slots), 2))
        demand[:, [CPU, RAM]] = self._mean[order] * wobble
        limit = tasks.shapes.limit[tasks.shape[self.slots[order]]]
        demand[:, RAM] = np.minimum(demand[:, RAM], limit[:, RAM])
        return Samples(tasks.id[self.slots[order]], tasks.incarnation[self.slots[order]], demand)


# --- placeable


def placeable(case: str, preset: Preset, pace: ReservationPace | None) -> dict[str, Any]:
    state = cells.google2011().load()
    rng = np.random.default_rng(cells.SEED)
    policy = Policy(max_assignments=2**40)
    asked = _asked(state)
    _apply(state, schedule_pass(state, policy, now=0.0, rng=rng))
    by_limits = _asked(state)
    used, history = Used(state, rng), UsageHistory()
    left, changes = [], 0
    for _ in range(ROUNDS):
        changes += _settle(state, used, history, preset, pace)
        plan = schedule_pass(state, policy, now=0.0, rng=rng)
        _apply(state, plan)
        used.refresh()
        left.append(_asked(state))
        if not plan.assignments:
            break
    prod = int((state.machines.prod_limit > state.machines.capacity)[:, [CPU, RAM]].sum())
    over = int((state.machines.reserved > state.machines.capacity)[:, [CPU, RAM]].sum())
    tasks, cpu, ram = zip(*(by_limits, left[0], left[-1]), strict=True)
    return {
        "case": case,
        "value": _percent(tasks[0] - tasks[-1], tasks[0]),
        "unit": "%",
        "better": "higher",
        "first": _percent(tasks[0] - tasks[1], tasks[0]),
        "cpu": _percent(cpu[0] - cpu[-1], cpu[0]),
        "ram": _percent(ram[0] - ram[-1], ram[0]),
        "pending_by_limits": {
            "tasks": tasks[0],
            "cpu_%_of_asked": _percent(cpu[0], asked[1]),
            "ram_%_of_asked": _percent(ram[0], asked[2]),
        },
        "pending_after": {
            "tasks": tasks[-1],
            "cpu_%_of_asked": _percent(cpu[-1], asked[1]),
            "ram_%_of_asked": _percent(ram[-1], asked[2]),
        },
        "passes": len(left),
        "changes": changes,
        "machines": len(state.machines),
        "tasks": asked[0],
        "machines_where_usage_outgrew_reservations": over,
        **({"failed": [f"prod over capacity {prod} times"]} if prod else {}),
    }


def _settle(state: CellState, used: Used, history: UsageHistory, preset: Preset, pace: ReservationPace | None) -> int:
    """Estimate reservations for `SETTLING_S` virtual seconds, and return how many reservations were written.

    With `pace`, each change is written when it is due. Without it, all changes are written at the end.
    """
    tasks, written = state.tasks, 0
    for _ in range(round(SETTLING_S / LOOK_S)):
        samples = used.samples()
        found = history.look(tasks, samples, preset, passed_s=LOOK_S)
        if pace is not None:
            due = np.flatnonzero(pace.due(tasks, samples, found, passed_s=LOOK_S))
            written += _write(state, found, due)
    if pace is None:
        written += _write(state, found, most_urgent(found, at_most=len(found.slots)))
    return written


def _write(state: CellState, found: Reservations, chosen: NDArray[np.int64]) -> int:
    """Set the reservations of the tasks that `chosen` selects from `found`, and return their number."""
    tasks, slots = state.tasks, found.slots[chosen]
    if not len(slots):
        return 0
    vectors = tasks.shapes.limit[tasks.shape[slots]].copy()
    vectors[:, : len(KINDS)] = found.wanted[chosen]
    event = events.ReservationsSet(
        tasks=tuple(split_task_id(identity) for identity in tasks.id[slots].tolist()),
        reservations=tuple(map(tuple, vectors.tolist())),
    )
    state.apply(event, revision=state.revision + 1, time=0.0)
    return len(slots)


def _apply(state: CellState, plan: Plan) -> None:
    """Apply the plan to the state: evict the victims of each placement, then place its task."""

    def send(event: events.Event) -> None:
        state.apply(event, revision=state.revision + 1, time=0.0)

    for placed in plan.assignments:
        for job, index in placed.victims:
            tasks = state.tasks
            slot = int(tasks.jobs[job].tasks[index])
            machine = int(state.machines.id[tasks.machine[slot]])
            incarnation = int(tasks.incarnation[slot])
            send(
                events.TaskEvicted(
                    job_id=job, index=index, machine_id=machine, incarnation=incarnation, cause="preemption", gone=True
                )
            )
        slot = int(state.tasks.jobs[placed.job_id].tasks[placed.index])
        incarnation = int(state.tasks.incarnation[slot]) + 1
        send(
            events.TaskPlaced(
                job_id=placed.job_id,
                index=placed.index,
                machine_id=placed.machine_id,
                incarnation=incarnation,
                ports=placed.ports,
            )
        )


def _asked(state: CellState) -> tuple[int, int, int]:
    """Return the number of pending tasks, and the CPU and RAM that they request."""
    slots = np.flatnonzero(state.tasks.state == PENDING)
    limits = state.tasks.shapes.limit[state.tasks.shape[slots]]
    return len(slots), int(limits[:, CPU].sum()), int(limits[:, RAM].sum())


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0
