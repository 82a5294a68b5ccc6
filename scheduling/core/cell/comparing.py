"""Compares two states of a cell. Tasks and machines are compared as arrays, and only differing ones in detail."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from scheduling.core.cell.audit import Audited
from scheduling.core.cell.tasks import FREE, PENDING, RUNNING, STATES
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints, Ints32
from scheduling.core.vocabulary.requirement import Requirement, split_task_id

# The most differences of one kind that are shown. The first ones are enough to find the cause.
MOST_TOLD = 20
_COMPARED_FACTS = attrgetter("hostname", "rack", "power_domain", "port_low", "port_high")


def live_tasks(state: Audited) -> list[int]:
    """Return the slots of all tasks of jobs that have not ended, sorted by the ids of the tasks."""
    tasks = state.tasks
    live = np.array([job is not None and not job.ended for job in tasks.job_at], dtype=np.bool_)
    slots = np.flatnonzero(tasks.state != FREE)
    slots = slots[live[tasks.job[slots]]]
    found: list[int] = slots[np.argsort(tasks.id[slots])].tolist()
    return found


def content(
    state: Audited, tasks_wanted: Iterable[int], *, machines_left_out: frozenset[int] = frozenset()
) -> dict[str, dict[Any, Any]]:
    """Return the content of a state, by kind (such as `task`) and id. `tasks_wanted`: the slots of the tasks to return.
    `machines_left_out`: the ids of the machines that the result does not contain. The sums `prod_limit` of machines are
    left out, because they can be computed from the rest.
    """
    machines, tasks = state.machines, state.tasks
    result: dict[str, dict[Any, Any]] = {
        "machine": {},
        "job": {},
        "task": {},
        "departure": {},
        "crash": {},
        "window": {},
        "pool": {},
    }
    wanted = machines.slot.keys() - machines_left_out
    installed = machines.installed.by_slot() if wanted else {}
    for machine_id in sorted(wanted):
        slot = machines.slot[machine_id]
        facts = machines.facts[slot]
        result["machine"][machine_id] = {
            "hostname": facts.hostname,
            "status": int(machines.status[slot]),
            "capacity": machines.capacity[slot].tolist(),
            "attributes": machines.attributes.of(slot),
            "rack": facts.rack,
            "power_domain": facts.power_domain,
            "ports": (facts.port_low, facts.port_high),
            "reserved": machines.reserved[slot].tolist(),
            "limits": machines.limits[slot].tolist(),
            "packages": installed.get(slot, []),
            "held": {port: sorted(holders) for port, holders in machines.ports[slot].held().items()},
        }
    for job in tasks.jobs.values():
        result["job"][job.id] = {
            "name": job.name,
            "tenant": (job.tenant_id, job.tenant),
            "kind": job.kind,
            "alloc_set": job.alloc_set,
            "priority": job.priority,
            "latency_sensitive": job.latency_sensitive,
            "port_names": job.port_names,
            "gang": job.gang,
            "disruption_budget": job.disruption_budget,
            "max_running": job.max_running,
            "start_after": job.start_after,
            "waiting": job.waiting,
            "max_run_s": job.max_run_s,
            "ends_within_s": job.ends_within_s,
            "ended": job.ended,
        }
    for task in tasks_wanted:
        result["task"][split_task_id(int(tasks.id[task]))] = _task(state, task)
    result["departure"] = {key: (machine, ports) for key, (machine, ports) in state.departed.items()}
    for identity, pairs in state.crashed.items():
        for machine_id, when in pairs.items():
            result["crash"][identity, machine_id] = round(when, 3)
    for number, window in state.calendar.windows.items():
        result["window"][number] = msgspec.structs.asdict(window)
    for name, pool in state.pools.pools.items():
        result["pool"][name] = msgspec.structs.asdict(pool)
    return result


def _task(state: Audited, task: int) -> dict[str, Any]:
    tasks = state.tasks
    facts: dict[str, Any] = {"state": STATES[int(tasks.state[task])]}
    if tasks.state[task] in (PENDING, RUNNING):
        facts["requirement"] = tasks.shapes.requirement[tasks.shape[task]]
    if tasks.state[task] == RUNNING:
        machine = int(tasks.machine[task])
        facts["machine"] = int(state.machines.id[machine]) if machine >= 0 else None
        facts["incarnation"] = int(tasks.incarnation[task])
        facts["reservation"] = tasks.reservation[task].tolist()
        facts["ports"] = tasks.ports.get(task, ())
        facts["alloc"] = int(tasks.id[tasks.alloc[task]]) if tasks.alloc[task] >= 0 else 0
        facts["devices"] = int(tasks.devices[task])
    return facts


def differences(state: Audited, other: Audited) -> list[str]:
    """Return the differences between two states as sentences; empty if they are equal."""
    found: list[str] = []
    same = _equal_machines(state, other)
    ours, theirs = (
        content(one, slots, machines_left_out=same)
        for one, slots in zip((state, other), _differing_tasks(state, other), strict=True)
    )
    for kind in ours:
        left, right = ours[kind], theirs[kind]
        detail = [
            f"{kind} {key}: {_differing(left.get(key), right.get(key))}"
            for key in sorted(left.keys() | right.keys())
            if left.get(key) != right.get(key)
        ]
        found += detail[:MOST_TOLD]
        if len(detail) > MOST_TOLD:
            found.append(f"… and {len(detail) - MOST_TOLD} more of kind {kind}")
    return found


def _differing(left: Any, right: Any) -> str:
    if isinstance(left, dict) and isinstance(right, dict):
        names = [name for name in (left | right) if left.get(name) != right.get(name)]
        return "; ".join(f"{name} {left.get(name)!r} here, {right.get(name)!r} there" for name in names)
    here, there = ("absent" if side is None else repr(side) for side in (left, right))
    return f"{here} here, {there} there"


def _equal_machines(state: Audited, other: Audited) -> frozenset[int]:
    """Return the ids of the machines that are equal in both states, with all that `content` returns of a machine."""
    if state.extra_resources != other.extra_resources:
        return frozenset()
    ours, theirs = state.machines, other.machines
    ids = [machine for machine in ours.slot if machine in theirs.slot]
    at, there = (np.array([table.slot[one] for one in ids], dtype=np.int32) for table in (ours, theirs))
    equal = (ours.status[at] == theirs.status[there]) & _equal_attributes(state, at, other, there)
    for mine, yours in (
        (ours.capacity, theirs.capacity), (ours.reserved, theirs.reserved), (ours.limits, theirs.limits)
    ):  # fmt: skip
        equal &= (mine[at] == yours[there]).all(axis=1)
    packages, other_packages = ours.installed.by_slot(), theirs.installed.by_slot()
    slots, other_slots = at.tolist(), there.tolist()
    return frozenset(
        ids[place]
        for place in np.flatnonzero(equal).tolist()
        if _COMPARED_FACTS(ours.facts[slots[place]]) == _COMPARED_FACTS(theirs.facts[other_slots[place]])
        and packages.get(slots[place]) == other_packages.get(other_slots[place])
        and ours.ports[slots[place]].held() == theirs.ports[other_slots[place]].held()
    )


def _equal_attributes(state: Audited, at: Ints32, other: Audited, there: Ints32) -> Bools:
    """Return bool[N]: whether the machine in slot `at[n]` of `state` has the same attributes as the machine in slot
    `there[n]` of `other`.
    """
    equal = np.ones(len(at), dtype=np.bool_)
    missing: tuple[Ints32, list[str]] = (np.full(len(at), -1, dtype=np.int32), [])
    left, right = state.machines.attributes.columns(at), other.machines.attributes.columns(there)
    for name in left.keys() | right.keys():
        (codes, values), (other_codes, other_values) = left.get(name, missing), right.get(name, missing)
        code_of = {value: code for code, value in enumerate(values)}
        # The last element is for machines that lack the attribute: their code is -1.
        translated = np.array([*(code_of.get(value, -2) for value in other_values), -1])
        equal &= codes == translated[other_codes]
    return equal


def _differing_tasks(state: Audited, other: Audited) -> tuple[list[int], list[int]]:
    """Return the slots, in `state` and in `other`, of the tasks that differ or that only one of them has."""
    ours, theirs = live_tasks(state), live_tasks(other)
    if state.extra_resources != other.extra_resources:
        return ours, theirs
    numbers: dict[Requirement, int] = {}
    left, right = _columns(state, ours, numbers), _columns(other, theirs, numbers)
    _, at, there = np.intersect1d(left[:, 0], right[:, 0], assume_unique=True, return_indices=True)
    equal = (left[at] == right[there]).all(axis=1)
    if state.tasks.ports or other.tasks.ports:
        slots, other_slots = np.array(ours, dtype=np.int64)[at], np.array(theirs, dtype=np.int64)[there]
        held, other_held = state.tasks.ports.get, other.tasks.ports.get
        equal &= np.fromiter(
            (held(mine) == other_held(yours) for mine, yours in zip(slots.tolist(), other_slots.tolist(), strict=True)),
            np.bool_,
            len(at),
        )
    return np.delete(ours, at[equal]).astype(int).tolist(), np.delete(theirs, there[equal]).astype(int).tolist()


def _columns(state: Audited, slots: list[int], numbers: dict[Requirement, int]) -> Ints:
    """Return the tasks in `slots` as numbers, for a fast comparison: one row per task, which begins with the task's id.
    Ports are left out. `numbers`: a number for each distinct requirement; this call adds those that are missing.
    """
    tasks, at = state.tasks, np.array(slots, dtype=np.int64)
    codes = np.array([numbers.setdefault(one, len(numbers)) for one in tasks.shapes.requirement], dtype=np.int64)
    running = tasks.state[at] == RUNNING
    alive = running | (tasks.state[at] == PENDING)
    machine = np.where(tasks.machine[at] >= 0, state.machines.id[tasks.machine[at]], -1)
    alloc = np.where(tasks.alloc[at] >= 0, tasks.id[tasks.alloc[at]], 0)
    held = np.column_stack([machine, tasks.incarnation[at], alloc, tasks.devices[at], tasks.reservation[at]])
    shape = np.where(alive, codes[tasks.shape[at]], -1) if len(codes) else np.zeros(len(at), dtype=np.int64)
    return np.column_stack([tasks.id[at], tasks.state[at], shape, held * running[:, None]])
