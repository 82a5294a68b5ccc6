"""A past state of a cell as counts and lists, for people. Pure.

A caller sees the machines and the counts of all tenants, as on the page of a cell, and lists only of jobs that it may
see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from quota.vocabulary.bands import Band, band_of
from quota.vocabulary.resources import ACCELERATORS, CPU, DISK, NAMES, RAM
from scheduling.core.cell.tasks import DEAD, FREE, PENDING, RUNNING, STATES, LiveJob
from scheduling.core.vocabulary.kernel_arrays import Bools
from scheduling.core.vocabulary.reasons import Why
from scheduling.core.vocabulary.requirement import INDEX_BITS, MAX_TASKS
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.moments.messages import (
    PAGE_SIZE,
    BandTasks,
    ListFilter,
    ListPage,
    MomentRequest,
    PastMachine,
    PastQueue,
    PastTask,
    PendingJob,
    Picture,
    ResourceSum,
)
from scheduling.history.moments.reasons import Reasons

# The most jobs with pending tasks that a picture lists.
MOST_PENDING_JOBS = 50
_STATUS = {code: status.value for code, status in enumerate(MachineStatus, start=1)}


def picture_of(
    state: RecordedState, request: MomentRequest, *, bands: Sequence[Band], reasons: Reasons | None
) -> Picture:
    """Return the parts of the state that the request asks for. `bands`: the priority bands. `reasons`: why tasks are
    pending; None if this was not computed.
    """
    names = {priority: _band(priority, bands) for priority in {job.priority for job in state.tasks.jobs.values()}}
    visible = [
        job for job in state.tasks.jobs.values() if request.tenants is None or job.tenant in set(request.tenants)
    ]
    since = _pending_since(state)
    waiting = [job for job in visible if job.id in since]
    waiting.sort(key=lambda job: (-job.priority, job.id))
    pending = tuple(_pending_job(state, job, names, since, reasons) for job in waiting[:MOST_PENDING_JOBS])
    machines, machines_page = _machines(state, request.machines)
    tasks, tasks_page = _tasks(state, visible, request.tasks, names)
    return Picture(
        revision=state.revision,
        machine_counts=_machine_counts(state),
        resources=_resources(state),
        bands=_band_tasks(state, names, bands),
        queues=_queues(state, names, since),
        pending=pending,
        pending_jobs=len(waiting),
        hidden_pending=len(since) - len(waiting),
        unexplained=reasons is None and bool(since),
        nearest_hosts=_hosts(state, [why for job in pending for why in job.whys]),
        machines=machines,
        machines_page=machines_page,
        tasks=tasks,
        tasks_page=tasks_page,
    )


def _band(priority: int, bands: Sequence[Band]) -> str:
    try:
        return band_of(priority, bands).name
    except LookupError:
        return ""


def _machine_counts(state: RecordedState) -> dict[str, int]:
    order = state.machines.order
    numbers = np.bincount(state.machines.status[order], minlength=len(_STATUS) + 1).tolist()
    return {name: numbers[code] for code, name in _STATUS.items()}


def _resources(state: RecordedState) -> tuple[ResourceSum, ...]:
    """Return one row per resource with its sums over the machines: CPU, RAM and disk, and those further resources that
    the cell has.
    """
    machines = state.machines
    up = machines.order[machines.up[machines.order]]
    capacity, limits, reserved = (
        table[up].sum(axis=0).tolist() for table in (machines.capacity, machines.limits, machines.reserved)
    )
    free = np.maximum(machines.capacity[up] - machines.reserved[up], 0).sum(axis=0).tolist()
    names = (*NAMES, *state.extra_resources)
    shown = [CPU, RAM, DISK, ACCELERATORS, *range(len(NAMES), state.axis)]
    return tuple(
        ResourceSum(names[r], capacity[r], limits[r], reserved[r], free[r])
        for r in shown
        if r in (CPU, RAM, DISK) or capacity[r]
    )


def _band_tasks(state: RecordedState, names: Mapping[int, str], bands: Sequence[Band]) -> tuple[BandTasks, ...]:
    """Return the numbers of jobs and tasks per band that has live jobs, highest band first. `names`: the name of the
    band by priority.
    """
    tasks = state.tasks
    live = {job.slot: job for job in tasks.jobs.values() if not job.ended}
    used = np.flatnonzero(tasks.state != FREE)
    numbers = np.zeros((len(tasks.job_at), len(STATES)), dtype=np.int64)
    np.add.at(numbers, (tasks.job[used], tasks.state[used]), 1)
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for slot, job in live.items():
        row, of_job = rows[names[job.priority]], numbers[slot].tolist()
        for place, number in enumerate((1, of_job[PENDING], of_job[RUNNING], of_job[DEAD])):
            row[place] += number
    order = [*(band.name for band in bands), ""]
    return tuple(BandTasks(name, *rows[name]) for name in order if name in rows)


def _pending_since(state: RecordedState) -> dict[int, tuple[int, float]]:
    """Return, by job id, how many tasks of the job are pending, and since when the oldest one is."""
    tasks = state.tasks
    found: dict[int, tuple[int, float]] = {}
    ids = np.sort(tasks.id[tasks.state == PENDING])
    jobs, begins, numbers = np.unique(ids >> INDEX_BITS, return_index=True, return_counts=True)
    for job_id, begin, number in zip(jobs.tolist(), begins.tolist(), numbers.tolist(), strict=True):
        details = state.details[job_id]
        indexes = (ids[begin : begin + number] & (MAX_TASKS - 1)).tolist()
        found[job_id] = number, min(details.since.get(index, details.submitted_at) for index in indexes)
    return found


def _queues(
    state: RecordedState, names: Mapping[int, str], since: Mapping[int, tuple[int, float]]
) -> tuple[PastQueue, ...]:
    """Return one row per priority that has pending tasks, highest first. `names`: the name of the band by priority.
    `since`: the result of `_pending_since`.
    """
    rows: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for job_id, pending in since.items():
        rows[state.tasks.jobs[job_id].priority].append(pending)
    return tuple(
        PastQueue(names[priority], priority, len(jobs), sum(n for n, _ in jobs), min(at for _, at in jobs))
        for priority, jobs in sorted(rows.items(), reverse=True)
    )


def _pending_job(
    state: RecordedState,
    job: LiveJob,
    names: Mapping[int, str],
    since: Mapping[int, tuple[int, float]],
    reasons: Reasons | None,
) -> PendingJob:
    number, oldest = since[job.id]
    return PendingJob(
        job.tenant,
        job.name,
        state.details[job.id].uid,
        job.id,
        job.priority,
        names[job.priority],
        number,
        oldest,
        reasons.placeable.get(job.id, 0) if reasons is not None else 0,
        tuple(reasons.whys.get(job.id, ())) if reasons is not None else (),
    )


def _hosts(state: RecordedState, whys: Sequence[Why]) -> dict[int, str]:
    """Return the hostnames, by machine id, of the machines that come closest to having enough for a task. `whys` name
    these machines.
    """
    machines = state.machines
    ids = {why.nearest.machine_id for why in whys if why.nearest is not None} & machines.slot.keys()
    return {machine: machines.facts[machines.slot[machine]].hostname for machine in ids}


def _machines(state: RecordedState, given: ListFilter) -> tuple[tuple[PastMachine, ...], ListPage]:
    """Return a page of the machines, sorted by hostname. The text of the search must occur in the hostname, the rack or
    the platform.
    """
    machines = state.machines
    found = []
    for slot in machines.order.tolist():
        facts = machines.facts[slot]
        if given.state and _STATUS[machines.status.item(slot)] != given.state:
            continue
        if given.search and not any(given.search in text for text in (facts.hostname, facts.rack, facts.platform)):
            continue
        found.append((facts.hostname, facts.rack, slot))
    found.sort()
    begin, page = _page(len(found), given.page)
    rows = [
        PastMachine(
            hostname,
            _STATUS[machines.status.item(slot)],
            rack,
            machines.tasks.item(slot),
            tuple(machines.limits[slot].tolist()),
            tuple(machines.capacity[slot].tolist()),
        )
        for hostname, rack, slot in found[begin : begin + PAGE_SIZE]
    ]
    return tuple(rows), page


def _tasks(
    state: RecordedState, visible: Sequence[LiveJob], given: ListFilter, names: Mapping[int, str]
) -> tuple[tuple[PastTask, ...], ListPage]:
    """Return a page of the tasks of visible jobs, sorted by job and index. The text of the search must occur in
    `tenant/job`.
    """
    tasks = state.tasks
    listed: Bools = np.zeros(len(tasks.job_at) + 1, dtype=np.bool_)  # the last one is for slots without a job
    for job in visible:
        listed[job.slot] = given.search in f"{job.tenant}/{job.name}"
    wanted = (tasks.state != FREE) & listed[tasks.job]
    if given.state:
        codes = [code for code, name in enumerate(STATES) if name is not None and name.value == given.state]
        wanted &= np.isin(tasks.state, codes)
    slots = np.flatnonzero(wanted)
    slots = slots[np.argsort(tasks.id[slots])]
    begin, page = _page(len(slots), given.page)
    return tuple(_task(state, slot, names) for slot in slots[begin : begin + PAGE_SIZE].tolist()), page


def _task(state: RecordedState, slot: int, names: Mapping[int, str]) -> PastTask:
    tasks, machines = state.tasks, state.machines
    job = tasks.job_at[tasks.job.item(slot)]
    assert job is not None
    details, index = state.details[job.id], tasks.id.item(slot) & (MAX_TASKS - 1)
    machine, code = tasks.machine.item(slot), STATES[tasks.state.item(slot)]
    return PastTask(
        job.tenant,
        job.name,
        details.uid,
        index,
        code.value if code is not None else "",
        names[job.priority],
        machines.facts[machine].hostname if machine >= 0 else "",
        tasks.incarnation.item(slot),
        details.since.get(index, details.submitted_at),
    )


def _page(rows: int, asked: int) -> tuple[int, ListPage]:
    """Return the index of the first row of a page, and the numbers that describe the page. `rows`: the number of all
    rows. `asked`: the requested page, from 1; the nearest page that exists is returned.
    """
    pages = max(1, -(-rows // PAGE_SIZE))
    page = min(max(asked, 1), pages)
    return (page - 1) * PAGE_SIZE, ListPage(page, pages, rows)
