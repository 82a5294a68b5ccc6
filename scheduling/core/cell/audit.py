"""Checks whether a cell's state is valid. Tests use these checks, and SREs use them on live cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from quota.vocabulary.resources import ACCELERATORS, NAMES, PORTS
from scheduling.core.cell.calendar import Calendar
from scheduling.core.cell.machines import MachineTable
from scheduling.core.cell.pools import Pools
from scheduling.core.cell.tasks import PENDING, RUNNING, TaskTable
from scheduling.core.kernels.devices import WHOLE
from scheduling.core.vocabulary.requirement import split_task_id


class Audited(Protocol):
    """The parts of a `CellState` that this module reads. `state.py` imports this module, so this module cannot import
    `CellState` itself.
    """

    extra_resources: tuple[str, ...]
    machines: MachineTable
    tasks: TaskTable
    departed: dict[tuple[int, int], tuple[int, tuple[int, ...]]]
    crashed: dict[int, dict[int, float]]
    calendar: Calendar
    pools: Pools


def tasks_on(state: Audited, machine: int) -> Iterator[int]:
    """Yield the slots of the tasks on one machine. `machine`: the slot of the machine."""
    task = int(state.machines.head[machine])
    while task >= 0:
        following = int(state.tasks.next[task])
        yield task
        task = following


def problems(state: Audited) -> list[str]:
    return [*_sums(state), *_lists(state), *_limits(state), *_ports(state), *_devices(state), *_allocs(state)]


def _sums(state: Audited) -> Iterator[str]:
    """Yield an error for each stored counter or sum that differs from the value that is computed from the tasks."""
    tasks, machines = state.tasks, state.machines
    for name, code, detail in (("pending", PENDING, tasks.pending), ("running", RUNNING, tasks.running)):
        counted = int((tasks.state == code).sum())
        if counted != detail:
            yield f"{counted} tasks are {name}, the counter says {detail}"
    for name, code, numbers in (("pending", PENDING, tasks.job_pending), ("running", RUNNING, tasks.job_running)):
        counts = np.bincount(tasks.job[tasks.state == code], minlength=len(numbers))
        for place in np.flatnonzero((counts != numbers) & tasks.job_there).tolist():
            job = tasks.job_at[place]
            yield f"{counts[place]} tasks of job {job.name if job else place} are {name}, not {numbers[place]}"
    for name, has, number in (
        ("are gangs", tasks.job_gang, tasks.gangs),
        ("have a disruption budget", tasks.job_budget > 0, tasks.budgets),
        ("have a max_running", tasks.job_max_running > 0, tasks.bounded),
        ("wait for a time or for other jobs", tasks.job_start_after > 0, tasks.delayed),
    ):
        counted = int((has & tasks.job_there).sum())
        if counted != number:
            yield f"{counted} jobs {name}, the counter says {number}"
    there = np.flatnonzero((tasks.state == RUNNING) & (tasks.machine >= 0) & (tasks.alloc < 0))
    limits = tasks.shapes.limit[tasks.shape[there]]
    by_limit = tasks.job_by_limit[tasks.job[there]]
    for name, amounts in (
        ("limits", limits),
        ("reserved", tasks.reservation[there]),
        ("prod_limit", limits * by_limit[:, None]),
    ):
        summed = np.zeros_like(machines.limits)
        np.add.at(summed, tasks.machine[there], amounts)
        held = getattr(machines, name)
        for slot in np.flatnonzero((summed != held).any(axis=1)):
            yield (
                f"machine {machines.id[slot]}: {name} is {held[slot].tolist()}, "
                f"its tasks add up to {summed[slot].tolist()}"
            )
    for slot in np.flatnonzero((tasks.state == RUNNING) & (tasks.machine < 0)):
        yield f"{_name(state, int(tasks.id[slot]))} runs on a machine that the cell does not have"


def _lists(state: Audited) -> Iterator[str]:
    """Yield an error for each machine whose list of tasks does not have exactly the tasks that run directly on it (not
    inside an alloc).
    """
    tasks, machines = state.tasks, state.machines
    held = np.flatnonzero((tasks.machine >= 0) & (tasks.state == RUNNING) & (tasks.alloc < 0))
    order = np.argsort(tasks.machine[held], kind="stable")
    slots = np.arange(len(machines.id))
    begins = np.searchsorted(tasks.machine[held[order]], slots).tolist()
    ends = np.searchsorted(tasks.machine[held[order]], slots, side="right").tolist()
    there, heads, following = held[order].tolist(), machines.head.tolist(), tasks.next.tolist()
    for machine_id, slot in machines.slot.items():
        own, task = there[begins[slot] : ends[slot]], heads[slot]
        listed: list[int] = []
        while task >= 0 and len(listed) <= len(own):  # a broken list may be a circle
            listed.append(task)
            task = following[task]
        if sorted(listed) != own or machines.tasks[slot] != len(own):
            yield f"machine {machine_id} lists {len(listed)} tasks, but {len(own)} tasks name this machine"


def _limits(state: Audited) -> Iterator[str]:
    """Yield an error for each machine on which the sum of the limits of prod tasks exceeds the capacity."""
    names = (*NAMES, *state.extra_resources)
    machines = state.machines
    over = set(np.flatnonzero((machines.prod_limit > machines.capacity).any(axis=1)).tolist())
    for machine_id, slot in sorted(one for one in machines.slot.items() if one[1] in over):
        for r in np.flatnonzero(machines.prod_limit[slot] > machines.capacity[slot]):
            yield (
                f"machine {machine_id}: prod tasks have limits of {machines.prod_limit[slot, r]} {names[r]}, "
                f"its capacity is {machines.capacity[slot, r]}: it shrank, or was over-committed"
            )


def _devices(state: Audited) -> Iterator[str]:
    """Yield an error for each machine whose free accelerators differ from those that its running tasks leave free
    (§5.4).
    """
    tasks, machines = state.tasks, state.machines
    held = np.zeros_like(machines.devices)
    for task in np.flatnonzero((tasks.state == RUNNING) & (tasks.devices != 0) & (tasks.alloc < 0)).tolist():
        if tasks.machine[task] >= 0:
            mask, limit = int(tasks.devices[task]), int(tasks.shapes.limit[tasks.shape[task], ACCELERATORS])
            for device in range(held.shape[1]):
                held[tasks.machine[task], device] += min(WHOLE, limit) * (mask >> device & 1)
    whole = machines.capacity[:, ACCELERATORS, None] - WHOLE * np.arange(held.shape[1])
    for slot in np.flatnonzero((whole.clip(0, WHOLE) - held != machines.devices).any(axis=1)):
        yield f"machine {machines.id[slot]} counts {machines.devices[slot].tolist()} free on its accelerators"


def _allocs(state: Audited) -> Iterator[str]:
    """Yield an error for each task that is on another machine than its alloc, and for each alloc whose tasks exceed
    its limit (§2.4).
    """
    tasks = state.tasks
    inside = np.flatnonzero((tasks.state == RUNNING) & (tasks.alloc >= 0))
    used: dict[int, Any] = {}
    for task, alloc in zip(inside.tolist(), tasks.alloc[inside].tolist(), strict=True):
        if tasks.state[alloc] != RUNNING or tasks.machine[alloc] != tasks.machine[task]:
            yield f"{_name(state, int(tasks.id[task]))} is not where its alloc is"
        used[alloc] = used.get(alloc, 0) + tasks.shapes.limit[tasks.shape[task]]
    for alloc, total in used.items():
        limit = tasks.shapes.limit[tasks.shape[alloc]]
        if (np.delete(total, PORTS) > np.delete(limit, PORTS)).any():
            yield f"{_name(state, int(tasks.id[alloc]))} holds {total.tolist()}, its limit is {limit.tolist()}"


def _ports(state: Audited) -> Iterator[str]:
    """Yield an error for each port that several tasks hold, and for each port whose holder is neither running nor
    departed.
    """
    tasks = state.tasks
    wanted: dict[int, dict[int, set[tuple[int, int]]]] = {}
    slots = np.fromiter(tasks.ports, np.int64, len(tasks.ports))
    holders_of = zip(tasks.id[slots].tolist(), tasks.incarnation[slots].tolist(), strict=True)
    for machine, holder, ports in zip(tasks.machine[slots].tolist(), holders_of, tasks.ports.values(), strict=True):
        own = wanted.setdefault(machine, {})
        for port in ports:
            own.setdefault(port, set()).add(holder)
    for key, (machine_id, ports) in state.departed.items():
        for port in ports:
            wanted.setdefault(state.machines.slot[machine_id], {}).setdefault(port, set()).add(key)
    for machine_id, slot in sorted(state.machines.slot.items()):
        ports_held = state.machines.ports[slot].held()
        for port in sorted(port for port, holders in ports_held.items() if len(holders) > 1):
            names = ", ".join(_name(state, task) for task, _ in sorted(ports_held[port]))
            yield f"port {port} of machine {machine_id} is held by {names}"
        if ports_held != wanted.get(slot, {}):
            yield f"machine {machine_id} holds ports {sorted(ports_held)}, its tasks {sorted(wanted.get(slot, {}))}"
        if state.machines.ports_free[slot] != state.machines.ports[slot].free:
            yield f"machine {machine_id} counts {state.machines.ports_free[slot]} free ports"


def _name(state: Audited, identity: int) -> str:
    job_id, index = split_task_id(identity)
    job = state.tasks.jobs.get(job_id)
    return f"task {index} of job {job.name if job else job_id}"
