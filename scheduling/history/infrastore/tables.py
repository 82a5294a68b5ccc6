"""The tables of Infrastore as Arrow schemas, and the conversion of journal events to the tables derived from them.

    events (Arrow) + facts of jobs ─► Conversion ─► collection_events, instance_events, machine_events, …

Pure. The archiver converts each file of events that it has written (`derived_tables.py`). The process that runs a query
converts the events that are not in such a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from scheduling.core.vocabulary import events as ev
from scheduling.core.vocabulary.requirement import Group, split_task_id
from scheduling.history.infrastore import columns
from scheduling.history.infrastore.columns import DERIVED, TABLES

_ARROW = {
    columns.TEXT: pa.string(),
    columns.INT: pa.int64(),
    columns.FLOAT: pa.float64(),
    columns.BOOL: pa.bool_(),
    columns.TIME: pa.timestamp("us"),
    columns.FLOATS: pa.list_(pa.float64()),
    columns.TEXTS_BY_NAME: pa.map_(pa.string(), pa.string()),
    columns.FLOATS_BY_NAME: pa.map_(pa.string(), pa.float64()),
}
SCHEMAS: dict[str, pa.Schema] = {
    name: pa.schema([(column.name, _ARROW[column.type]) for column in table.columns]) for name, table in TABLES.items()
}
# The columns of the table `events` that the conversion reads, in the order of `_Head`.
OF_EVENTS = ("time", "time_us", "revision", "seq", "actor", "kind", "data")
# The columns of earlier rows that `machines_after` reads, by table.
BEFORE = {"machine_events": ("machine_id", "type"), "machine_attributes": ("machine_id", "name", "value", "deleted")}
_CPU, _RAM = 0, 1
_LATENCY_SENSITIVE = 3
# The name of an eviction in the trace of 2019, by its cause. All other causes are `evict`.
_EVICTION_TYPES = {"lost": "lost", "failure": "fail"}
_ENDINGS = {"finished": "finish", "failed": "fail", "killed": "kill"}
_Row = dict[str, Any]


class JobFacts(NamedTuple):
    """The facts of a job that its events do not repeat. `user`: the tenant. `alloc_set`: the id of the alloc set in
    which the job's tasks run, or 0.
    """

    user: str
    name: str
    kind: str
    priority: int
    latency_sensitive: bool
    alloc_set: int = 0


def machines_after(table: str, rows: Iterable[tuple[Any, ...]]) -> dict[int, dict[str, str]]:
    """Return the attributes of each machine after the rows of an earlier range, for `Conversion`. Machines that were
    removed are missing.

    `table`: `machine_events`, whose rows contain no attributes, or `machine_attributes`. `rows`: the columns
    `BEFORE[table]` of its rows, in the order of the journal.
    """
    found: dict[int, dict[str, str]] = {}
    if table == "machine_events":
        for machine, kind in rows:
            if kind == "remove":
                found.pop(machine, None)
            else:
                found[machine] = {}
        return found
    for machine, name, value, deleted in rows:
        attributes = found.setdefault(machine, {})
        if deleted:
            attributes.pop(name, None)
        else:
            attributes[name] = value
    return found


def _table(name: str, rows: list[_Row]) -> pa.Table:
    return pa.Table.from_pydict(
        {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in SCHEMAS[name]},
        schema=SCHEMAS[name],
    )


class _Head(NamedTuple):
    """The columns that all rows of an event share."""

    time: Any
    time_us: int
    revision: int
    seq: int
    actor: str


class Conversion:
    """Converts the events of a journal to the derived tables, one range of events after the other.

    `jobs`: the facts of jobs by their id; the facts of jobs that are submitted in the ranges are not needed. Events of
    unknown jobs get empty facts. `machines`: the attributes of each machine before the first range. The first event of
    every other machine has the type `add`.
    """

    def __init__(self, jobs: Mapping[int, JobFacts], machines: Mapping[int, Mapping[str, str]] | None = None) -> None:
        self.rows: dict[str, list[_Row]] = {name: [] for name in DERIVED}
        self.jobs = dict(jobs)
        self.machines = {machine: dict(attributes) for machine, attributes in (machines or {}).items()}

    def tables(self, events: pa.Table) -> dict[str, pa.Table]:
        """Return the derived tables, by name, for the next range of events. `events`: rows of the table `events`, in
        the order of the journal.
        """
        self.rows = {name: [] for name in DERIVED}
        values = [events.column(name).to_pylist() for name in OF_EVENTS]
        for *head, kind, data in zip(*values, strict=True):
            if handler := _HANDLERS.get(kind):
                handler(self, _Head(*head), ev.decode(data))
        return {name: _table(name, rows) for name, rows in self.rows.items()}

    def add(self, table: str, head: _Head, **values: Any) -> None:
        self.rows[table].append(head._asdict() | values)

    def collection(self, head: _Head, type: str, job_id: int, **values: Any) -> None:
        self.add("collection_events", head, type=type, **self._facts(job_id), **values)

    def instance(self, head: _Head, type: str, job_id: int, index: int, **values: Any) -> None:
        self.add("instance_events", head, type=type, instance_index=index, **{**self._facts(job_id), **values})

    def submitted(self, head: _Head, job_id: int, groups: tuple[Group, ...], spec_version: int) -> None:
        for group in groups:
            for index in group.indexes():
                amounts = _request(group.requirement.limit)
                self.instance(head, "submit", job_id, index, spec_version=spec_version, **amounts)

    def _facts(self, job_id: int) -> _Row:
        facts = self.jobs.get(job_id)
        if facts is None:
            return {"collection_id": job_id}
        return {
            "collection_id": job_id,
            "user": facts.user,
            "collection_name": facts.name,
            "collection_type": facts.kind,
            "priority": facts.priority,
            "scheduling_class": _LATENCY_SENSITIVE if facts.latency_sensitive else 0,
            "alloc_collection_id": facts.alloc_set or None,
        }


def _request(limit: tuple[int, ...]) -> _Row:
    return {"resource_request_cpus": limit[_CPU] / 1000, "resource_request_memory": limit[_RAM]}


def _exit(found: Mapping[str, Any] | None) -> _Row:
    if not found:
        return {}
    return {"exit_reason": found.get("cause"), "exit_status": found.get("status"), "exit_signal": found.get("signal")}


def _job_submitted(to: Conversion, head: _Head, event: ev.JobSubmitted) -> None:
    to.jobs[event.job_id] = JobFacts(
        event.tenant, event.name, event.job_kind, event.priority, event.latency_sensitive, event.alloc_set
    )
    first = event.groups[0].requirement if event.groups else None
    to.collection(
        head,
        "submit",
        event.job_id,
        tasks=sum(group.size for group in event.groups),
        spec_version=event.spec_version,
        max_per_machine=first.max_per_machine if first else None,
        max_per_switch=first.max_per_rack if first else None,
    )
    to.submitted(head, event.job_id, event.groups, event.spec_version)


def _job_rejected(to: Conversion, head: _Head, event: ev.JobRejected | ev.CronSkipped) -> None:
    values = {"user": event.tenant, "collection_name": event.name, "detail": f"{event.code}: {event.detail}"}
    to.add("collection_events", head, type="reject", **values)


def _job_changed(to: Conversion, head: _Head, event: ev.JobChanged) -> None:
    if facts := to.jobs.get(event.job_id):
        to.jobs[event.job_id] = facts._replace(priority=event.priority, latency_sensitive=event.latency_sensitive)
    values = {"spec_version": event.spec_version, "detail": event.reason or None}
    to.collection(head, "update_running", event.job_id, **values)


def _job_released(to: Conversion, head: _Head, event: ev.JobReleased) -> None:
    to.collection(head, "release", event.job_id)


def _job_ended(to: Conversion, head: _Head, event: ev.JobEnded) -> None:
    to.collection(head, _ENDINGS.get(event.how, event.how), event.job_id)


def _update_started(to: Conversion, head: _Head, event: ev.UpdateStarted) -> None:
    detail = "undo" if event.undo else "restart" if event.restarted else None
    to.collection(head, "update_start", event.job_id, spec_version=event.to_version, detail=detail)


def _update_paused(to: Conversion, head: _Head, event: ev.UpdatePaused) -> None:
    to.collection(head, "update_pause" if event.paused else "update_resume", event.job_id)


def _update_promoted(to: Conversion, head: _Head, event: ev.UpdatePromoted) -> None:
    to.collection(head, "update_promote", event.job_id)


def _update_ended(to: Conversion, head: _Head, event: ev.UpdateEnded) -> None:
    detail = f"{event.how}: {event.detail}" if event.detail else event.how
    to.collection(head, "update_end", event.job_id, detail=detail)


def _tasks_added(to: Conversion, head: _Head, event: ev.TasksAdded) -> None:
    to.submitted(head, event.job_id, event.groups, event.spec_version)


def _task_revived(to: Conversion, head: _Head, event: ev.TaskRevived) -> None:
    to.instance(head, "submit", event.job_id, event.index, spec_version=event.spec_version)


def _task_placed(to: Conversion, head: _Head, event: ev.TaskPlaced) -> None:
    values = _placement(event) | {
        "score": sorted(event.score.items()) or None,
        "victims": len(event.victims),
        "spec_version": event.spec_version,
    }
    if event.packages:
        values["package_bytes_installed"], values["package_bytes"] = event.packages[:2]
    if event.alloc:
        values["alloc_collection_id"], values["alloc_instance_index"] = split_task_id(event.alloc)
    to.instance(head, "schedule", event.job_id, event.index, **values)


def _placement(event: ev.TaskPlaced | ev.TaskEvicted | ev.TaskEnded | ev.TaskGone | ev.TaskReported) -> _Row:
    return {"machine_id": event.machine_id or None, "incarnation": event.incarnation}


def _task_evicted(to: Conversion, head: _Head, event: ev.TaskEvicted) -> None:
    job, index = event.preemptor or (None, None)
    values = _placement(event) | _exit(event.exit)
    values |= {"cause": event.cause, "detail": event.detail or None}
    values |= {"preemptor_collection_id": job, "preemptor_instance_index": index}
    to.instance(head, _EVICTION_TYPES.get(event.cause, "evict"), event.job_id, event.index, **values)


def _task_ended(to: Conversion, head: _Head, event: ev.TaskEnded) -> None:
    values = _placement(event) | _exit(event.exit) | {"detail": event.detail or None}
    to.instance(head, _ENDINGS.get(event.how, event.how), event.job_id, event.index, **values)


def _task_gone(to: Conversion, head: _Head, event: ev.TaskGone) -> None:
    to.instance(head, "gone", event.job_id, event.index, **_placement(event), **_exit(event.exit))


def _task_updated(to: Conversion, head: _Head, event: ev.TaskUpdated) -> None:
    amounts = _request(event.requirement.limit)
    to.instance(head, "update", event.job_id, event.index, spec_version=event.spec_version, **amounts)


def _task_reported(to: Conversion, head: _Head, event: ev.TaskReported) -> None:
    values = _placement(event) | _exit(event.exit)
    values |= {"phase": event.phase, "health": event.health, "up": event.up, "restarts": event.restarts}
    to.instance(head, "report", event.job_id, event.index, **values)


def _reservations_set(to: Conversion, head: _Head, event: ev.ReservationsSet) -> None:
    for (job_id, index), amounts in zip(event.tasks, event.reservations, strict=True):
        facts = to.jobs.get(job_id)
        to.add(
            "reservations",
            head,
            user=facts.user if facts else None,
            collection_id=job_id,
            instance_index=index,
            reserved_cpus=amounts[_CPU] / 1000,
            reserved_memory=amounts[_RAM],
        )


def _machine_set(to: Conversion, head: _Head, event: ev.MachineSet) -> None:
    before = to.machines.get(event.machine_id)
    to.add(
        "machine_events",
        head,
        type="add" if before is None else "update",
        machine_id=event.machine_id,
        machine_name=event.hostname,
        switch_id=event.rack,
        power_domain=event.power_domain,
        platform_id=event.platform,
        capacity_cpus=event.capacity[_CPU] / 1000,
        capacity_memory=event.capacity[_RAM],
    )
    for name, value in sorted(event.attributes.items()):
        _attribute(to, head, event.machine_id, name, value)
    for name in sorted((before or {}).keys() - event.attributes.keys()):
        _attribute(to, head, event.machine_id, name, "", deleted=True)
    to.machines[event.machine_id] = dict(event.attributes)


def _attribute(to: Conversion, head: _Head, machine_id: int, name: str, value: str, *, deleted: bool = False) -> None:
    to.add("machine_attributes", head, machine_id=machine_id, name=name, value=value, deleted=deleted)


def _machine_state(to: Conversion, head: _Head, event: ev.MachineState) -> None:
    to.add("machine_events", head, type=event.state, machine_id=event.machine_id, detail=event.reason or None)


def _machine_removed(to: Conversion, head: _Head, event: ev.MachineRemoved) -> None:
    to.add("machine_events", head, type="remove", machine_id=event.machine_id, detail=event.reason or None)
    for name in sorted(to.machines.pop(event.machine_id, {})):
        _attribute(to, head, event.machine_id, name, "", deleted=True)


_Handler = Callable[[Conversion, _Head, Any], None]
_HANDLERS: dict[str, _Handler] = {
    str(_event.__struct_config__.tag): _handler
    for _event, _handler in (
        (ev.JobSubmitted, _job_submitted),
        (ev.JobRejected, _job_rejected),
        (ev.CronSkipped, _job_rejected),
        (ev.JobChanged, _job_changed),
        (ev.JobReleased, _job_released),
        (ev.JobEnded, _job_ended),
        (ev.UpdateStarted, _update_started),
        (ev.UpdatePaused, _update_paused),
        (ev.UpdatePromoted, _update_promoted),
        (ev.UpdateEnded, _update_ended),
        (ev.TasksAdded, _tasks_added),
        (ev.TaskRevived, _task_revived),
        (ev.TaskPlaced, _task_placed),
        (ev.TaskEvicted, _task_evicted),
        (ev.TaskEnded, _task_ended),
        (ev.TaskGone, _task_gone),
        (ev.TaskUpdated, _task_updated),
        (ev.TaskReported, _task_reported),
        (ev.ReservationsSet, _reservations_set),
        (ev.MachineSet, _machine_set),
        (ev.MachineState, _machine_state),
        (ev.MachineRemoved, _machine_removed),
    )
}
