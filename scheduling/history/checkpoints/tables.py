"""The sections of a checkpoint, as Arrow tables made from a state, and the state made from these tables. Pure.

    RecordedState ─► tables_of ─► {section: table} ─► state_of ─► an equal RecordedState

The names of the columns are those of the events (`scheduling.core.vocabulary.events`). Environment values are in no
section, because a state has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from scheduling.core.cell.bulk import TaskColumns, add_tasks, prepare
from scheduling.core.cell.tasks import FREE, RUNNING
from scheduling.core.garbage import collection_paused
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.requirement import INDEX_BITS, MAX_TASKS, Requirement
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.history.checkpoints.recorded import RecordedState

if TYPE_CHECKING:
    import pyarrow

Tables = dict[str, "pyarrow.Table"]
_STATUS = {code: status.value for code, status in enumerate(MachineStatus, start=1)}
_JSON_OF_MACHINE = ("attributes",)
_JSON_OF_JOB = ("labels", "published")


def tables_of(state: RecordedState) -> Tables:
    """Return the tables of a state, by section."""
    with collection_paused():
        tasks, requirements = _tasks(state)
        return {
            "machines": _machines(state),
            "packages": _packages(state),
            "windows": windows_table(event for _, event in sorted(state.calendar.windows.items())),
            "pools": pools_table(event for _, event in sorted(state.pools.pools.items())),
            "jobs": _jobs(state),
            "requirements": requirements,
            "tasks": tasks,
            "reservations": _reservations(state),
            "departures": _departures(state),
            "crashes": _crashes(state),
            "updates": _updates(state),
        }


def state_of(tables: Tables, *, extra_resources: Iterable[str], revision: int) -> RecordedState:
    """Return the state that the tables describe. Raises `LookupError` if they contradict each other."""
    with collection_paused():
        state = RecordedState(extra_resources)
        prepare(state, tables["tasks"].num_rows)
        state.load(((event, at) for event, at in _events(tables)), revision=revision)
        _load_tasks(state, tables)
        _load_departures(state, tables["departures"])
        for row in tables["crashes"].to_pylist():
            state.crashed.setdefault(row["task"], {})[row["machine_id"]] = row["at"]
        _load_ended(state, tables["jobs"])
    return state


def _machines(state: RecordedState) -> pyarrow.Table:
    machines = state.machines
    rows = []
    for _, slot in sorted(machines.slot.items()):
        facts = msgspec.structs.asdict(machines.facts[slot])
        del facts["reason"]
        facts["state"] = _STATUS[int(machines.status[slot])]
        facts["attributes"] = _json(facts["attributes"])
        rows.append(facts)
    return _table(rows, schema("machines"))


def _packages(state: RecordedState) -> pyarrow.Table:
    came: dict[str, list[int]] = {}
    for slot, digests in state.machines.installed.by_slot().items():
        for digest in digests:
            came.setdefault(digest, []).append(int(state.machines.id[slot]))
    rows = [{"digest": digest, "machines": sorted(ids)} for digest, ids in sorted(came.items())]
    return _table(rows, schema("packages"))


def windows_table(windows: Iterable[events.MaintenanceSet]) -> pyarrow.Table:
    """Return the table of the maintenance windows that have not ended, given by number."""
    rows = [{"window": one.window, "event": msgspec.json.encode(one).decode()} for one in windows]
    return _table(rows, schema("windows"))


def pools_table(pools: Iterable[events.PoolSet]) -> pyarrow.Table:
    """Return the table of the machine pools, given by name."""
    rows = [{"pool": one.pool, "event": msgspec.json.encode(one).decode()} for one in pools]
    return _table(rows, schema("pools"))


def _jobs(state: RecordedState) -> pyarrow.Table:
    rows = []
    for job in sorted(state.tasks.jobs.values(), key=lambda job: job.id):
        details = state.details[job.id]
        rows.append(
            {
                "job_id": job.id,
                "uid": details.uid,
                "tenant_id": job.tenant_id,
                "tenant": job.tenant,
                "name": job.name,
                "job_kind": job.kind,
                "priority": job.priority,
                "latency_sensitive": job.latency_sensitive,
                "spec_version": details.spec_version,
                "labels": _json(details.labels),
                "port_names": job.port_names,
                "alloc_set": job.alloc_set,
                "gang": job.gang,
                "disruption_budget": job.disruption_budget,
                "max_running": job.max_running,
                "start_after": job.start_after,
                "waiting": job.waiting,
                "max_run_s": job.max_run_s,
                "ends_within_s": job.ends_within_s,
                "published": _json(details.published),
                "submitted_at": details.submitted_at,
                "ended": job.ended,
            }
        )
    return _table(rows, schema("jobs"))


def _tasks(state: RecordedState) -> tuple[pyarrow.Table, pyarrow.Table]:
    import pyarrow

    tasks = state.tasks
    slots = np.flatnonzero(tasks.state != FREE)
    slots = slots[np.argsort(tasks.id[slots])]
    ids = tasks.id[slots]
    used, shape = np.unique(tasks.shape[slots], return_inverse=True)
    wanted = [msgspec.json.encode(tasks.shapes.requirement[one]).decode() for one in used.tolist()]
    order = np.array(sorted(range(len(wanted)), key=wanted.__getitem__), dtype=np.int32)
    place = np.argsort(order).astype(np.int32)  # equal states give equal tables
    machine = np.where(tasks.machine[slots] >= 0, state.machines.id[tasks.machine[slots]], 0)
    alloc = np.where(tasks.alloc[slots] >= 0, tasks.id[tasks.alloc[slots]], 0)
    places = {slot: place for place, slot in enumerate(slots.tolist())} if tasks.ports else {}
    ports: list[tuple[int, ...]] = [()] * len(slots)
    for slot, held in tasks.ports.items():
        ports[places[slot]] = held
    version, since = np.zeros(len(slots), np.int32), np.zeros(len(slots))
    for job_id, begin, end in _by_job(ids):
        details, index = state.details[job_id], (ids[begin:end] & (MAX_TASKS - 1)).tolist()
        version[begin:end] = details.first_version
        if details.versions:
            version[begin:end] = [details.version_of(one) for one in index]
        since[begin:end] = [details.since.get(one, details.submitted_at) for one in index]
    runs = tasks.state[slots] == RUNNING
    since[runs] = tasks.since[slots[runs]]
    columns = {
        "id": ids,
        "state": tasks.state[slots],
        "requirement": place[shape],
        "machine_id": machine,
        "last": tasks.last[slots],
        "incarnation": tasks.incarnation[slots],
        "alloc": alloc,
        "devices": tasks.devices[slots],
        "spec_version": version,
        "since": since,
        "up": tasks.up[slots] & runs,
        "ports": pyarrow.array(ports, pyarrow.list_(pyarrow.int32())),
    }
    return pyarrow.table(columns), pyarrow.table({"requirement": pyarrow.array(sorted(wanted), pyarrow.string())})


def _reservations(state: RecordedState) -> pyarrow.Table:
    """Return the reservations that differ from the limits of their tasks."""
    import pyarrow

    tasks = state.tasks
    slots = np.flatnonzero(tasks.state == RUNNING)
    slots = slots[(tasks.reservation[slots] != tasks.shapes.limit[tasks.shape[slots]]).any(axis=1)]
    slots = slots[np.argsort(tasks.id[slots])]
    columns = {f"r{r}": tasks.reservation[slots, r] for r in range(state.axis)}
    return pyarrow.table({"id": tasks.id[slots], **columns})


def _departures(state: RecordedState) -> pyarrow.Table:
    rows = [
        {"task": task, "incarnation": incarnation, "machine_id": machine, "ports": ports}
        for (task, incarnation), (machine, ports) in sorted(state.departed.items())
    ]
    return _table(rows, schema("departures"))


def _crashes(state: RecordedState) -> pyarrow.Table:
    rows = [
        {"task": task, "machine_id": machine, "at": at}
        for task, pairs in sorted(state.crashed.items())
        for machine, at in pairs.items()
    ]
    return _table(rows, schema("crashes"))


def _updates(state: RecordedState) -> pyarrow.Table:
    found = [details.update for _, details in sorted(state.details.items()) if details.update]
    rows = [{**msgspec.structs.asdict(event), "at": at} for event, at in found]
    return _table(rows, schema("updates"))


def _events(tables: Tables) -> Iterable[tuple[events.Event, float]]:
    """Yield (event, time) for the machines, their packages, the maintenance windows, the machine pools, the jobs
    without their tasks, and the updates.
    """
    for row in tables["machines"].to_pylist():
        facts = _decoded(row, _JSON_OF_MACHINE)
        yield events.MachineSet(**{**facts, "capacity": tuple(facts["capacity"])}), 0.0
    came = {row["digest"]: tuple(row["machines"]) for row in tables["packages"].to_pylist()}
    if came:
        yield events.PackagesHeld(came=came), 0.0
    if "windows" in tables:  # older checkpoints lack it
        for text in tables["windows"]["event"].to_pylist():
            yield msgspec.json.decode(text, type=events.MaintenanceSet), 0.0
    if "pools" in tables:  # older checkpoints lack it
        for text in tables["pools"]["event"].to_pylist():
            yield msgspec.json.decode(text, type=events.PoolSet), 0.0
    for row in tables["jobs"].to_pylist():
        facts, at = _decoded(row, _JSON_OF_JOB), row["submitted_at"]
        del facts["submitted_at"], facts["ended"]
        facts["published"] = msgspec.convert(facts["published"], Published)
        facts["port_names"] = tuple(facts["port_names"])
        yield events.JobSubmitted(**facts, groups=()), at
    for row in tables["updates"].to_pylist():
        at = row.pop("at")
        yield events.UpdateStarted(**row), at


def _load_tasks(state: RecordedState, tables: Tables) -> None:
    table = tables["tasks"]
    column = {name: table[name].to_numpy() for name in table.column_names if name != "ports"}
    texts = tables["requirements"]["requirement"].to_pylist()
    requirements = [msgspec.json.decode(text, type=Requirement) for text in texts]
    ids = column["id"]
    limits = np.zeros((len(requirements), state.axis), dtype=np.int64)
    for number, requirement in enumerate(requirements):
        limits[number, : len(requirement.limit)] = requirement.limit
    reservation = limits[column["requirement"]] if len(ids) else np.zeros((0, state.axis), dtype=np.int64)
    changed = tables["reservations"]
    rows = np.searchsorted(ids, changed["id"].to_numpy())
    for r in range(state.axis):
        if f"r{r}" in changed.column_names:
            reservation[rows, r] = changed[f"r{r}"].to_numpy()
    columns = TaskColumns(
        ids,
        column["state"],
        column["requirement"],
        column["machine_id"],
        column["last"],
        column["incarnation"],
        column["since"],
        column["up"] if "up" in column else np.zeros(len(ids), np.bool_),  # older checkpoints lack it
        reservation,
        column["alloc"],
        column["devices"],
        _ports_by_task(ids, table["ports"]),
    )
    add_tasks(state, columns, requirements)
    version, since = column["spec_version"].tolist(), column["since"].tolist()
    index = (ids & (MAX_TASKS - 1)).tolist()
    for job_id, begin, end in _by_job(ids):
        details = state.details[job_id]
        details.since = dict(zip(index[begin:end], since[begin:end], strict=True))
        details.first_version = version[begin]
        differing = {i: v for i, v in zip(index[begin:end], version[begin:end], strict=True) if v != version[begin]}
        details.versions = differing


def _ports_by_task(ids: Ints, ports: pyarrow.ChunkedArray) -> dict[int, tuple[int, ...]]:
    """Return the ports of each task that holds any, by task id. `ports`: the lists of the tasks whose ids are `ids`."""
    if not len(ids):
        return {}
    lists = ports.combine_chunks()
    offsets, values = lists.offsets.to_numpy(), lists.values.to_pylist()
    holding = np.flatnonzero(np.diff(offsets))
    rows = zip(ids[holding].tolist(), offsets[holding].tolist(), offsets[holding + 1].tolist(), strict=True)
    return {identity: tuple(values[begin:end]) for identity, begin, end in rows}


def _load_departures(state: RecordedState, table: pyarrow.Table) -> None:
    for row in table.to_pylist():
        identity, machine, ports = row["task"], row["machine_id"], tuple(row["ports"])
        state.departed[identity, row["incarnation"]] = (machine, ports)
        state.tasks.jobs[identity >> INDEX_BITS].departures += 1
        slot = state.machines.slot.get(machine)
        if slot is not None and ports:
            state.machines.hold(slot, identity, row["incarnation"], ports)


def _load_ended(state: RecordedState, table: pyarrow.Table) -> None:
    ended = table["ended"].to_numpy(zero_copy_only=False)
    for job_id in table["job_id"].to_numpy()[ended].tolist():
        state.tasks.jobs[job_id].ended = True


def _by_job(ids: Ints) -> Iterator[tuple[int, int, int]]:
    """Yield (job id, begin, end) for each job: the elements of `ids` from `begin` to `end` - 1 are the tasks of the
    job. `ids`: sorted ids of tasks.
    """
    jobs, begins = np.unique(ids >> INDEX_BITS, return_index=True)
    ends = np.append(begins[1:], len(ids)) if len(jobs) else begins
    yield from zip(jobs.tolist(), begins.tolist(), ends.tolist(), strict=True)


def _decoded(row: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {**row, **{name: msgspec.json.decode(row[name]) for name in names}}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _table(rows: list[dict[str, Any]], schema: pyarrow.Schema) -> pyarrow.Table:
    import pyarrow

    return pyarrow.Table.from_pylist(rows, schema=schema)


def schema(section: str) -> pyarrow.Schema:
    """Return the Arrow schema of a section, such as `jobs`: its columns and their types. Only for sections whose
    columns are equal for all cells.
    """
    import pyarrow as pa

    text, number, whole, flag = pa.string(), pa.int64(), pa.int32(), pa.bool_()
    return pa.schema(
        {
            "machines": {
                "machine_id": number,
                "hostname": text,
                "address": text,
                "capacity": pa.list_(number),
                "attributes": text,
                "platform": text,
                "rack": text,
                "power_domain": text,
                "port_low": whole,
                "port_high": whole,
                "state": text,
            },
            "packages": {"digest": text, "machines": pa.list_(number)},
            "windows": {"window": number, "event": text},
            "pools": {"pool": text, "event": text},
            "jobs": {
                "job_id": number,
                "uid": text,
                "tenant_id": number,
                "tenant": text,
                "name": text,
                "job_kind": text,
                "priority": whole,
                "latency_sensitive": flag,
                "spec_version": whole,
                "labels": text,
                "port_names": pa.list_(text),
                "alloc_set": number,
                "gang": flag,
                "disruption_budget": whole,
                "max_running": whole,
                "start_after": pa.float64(),
                "waiting": flag,
                "max_run_s": pa.float64(),
                "ends_within_s": pa.float64(),
                "published": text,
                "submitted_at": pa.float64(),
                "ended": flag,
            },
            "departures": {"task": number, "incarnation": whole, "machine_id": number, "ports": pa.list_(whole)},
            "crashes": {"task": number, "machine_id": number, "at": pa.float64()},
            "updates": {
                "job_id": number,
                "update_id": number,
                "from_version": whole,
                "to_version": whole,
                "max_down": whole,
                "undo": flag,
                "at": pa.float64(),
            },
        }[section]
    )
