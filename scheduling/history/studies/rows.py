"""Writes the rows of a copied cell: machines, jobs, specs, tasks and departures. A departure is an incarnation of a
task that left its place, but whose processes the machine still has to stop.

A checkpoint does not contain everything that rows contain. Phases of tasks are empty, because Borglets report them.
Jobs of a study cell, a copy for experiments, request no quota (`Job.requested` is zero).
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from quota.vocabulary.bands import Band, band_of
from quota.vocabulary.resources import SIZE
from scheduling.core.cell.tasks import DEAD, PENDING, RUNNING, STATES
from scheduling.core.vocabulary.events import PoolSet
from scheduling.core.vocabulary.requirement import INDEX_BITS, MAX_TASKS, Requirement
from scheduling.history.checkpoints.tables import Tables
from scheduling.history.studies.specs import StoredSpec, Version
from scheduling.journal import copy_rows
from scheduling.journal.copy_rows import NULL, column
from scheduling.models import Cell, CrashedPair, Departure, Job, JobSpec, Machine, Pool, Task, Update

# A checkpoint does not contain why an incarnation has to stop.
UNKNOWN_CAUSE = "unknown"
_TASK = (
    'id, cell_id, job_id, index, state, machine_id, incarnation, spec_version, "limit", reservation, ports, alloc_id,'
    " devices, since, phase, health, up, restarts, evictions, outcome, detail"
)
_FACTS = ("hostname", "address", "capacity", "platform", "rack", "power_domain", "port_low", "port_high", "state")
_MACHINE = (
    *("id", "cell_id", *_FACTS, "attributes", "packages", "quarantined", "session", "reason", "secret_digest"),
    *("boot_id", "software", "state_since", "joined_at"),
)
_NONE = msgspec.Raw(b"[]")


def rows_write(
    cell: Cell,
    tables: Tables,
    specs: Mapping[Version, StoredSpec],
    *,
    bands: Sequence[Band],
    actor: str,
    now: dt.datetime,
) -> None:
    """Write the rows of a new cell. `tables`, `specs`: with the ids of the new rows. `actor`: the author of specs and
    updates.
    """
    axis = SIZE + len(cell.extra_resources)
    copy_rows.values(Machine, _MACHINE, _machines(cell, tables))
    copy_rows.rows(Pool, list(_pools(cell, tables, actor=actor)))
    copy_rows.rows(Job, list(_jobs(cell, tables, bands=bands, axis=axis, actor=actor, now=now)))
    copy_rows.values(
        JobSpec,
        ("job_id", "version", "spec", "digest", "packages", "actor", "created_at"),
        [
            (job, version, one.spec, _digest(one.spec), one.packages, actor, now)
            for (job, version), one in sorted(specs.items())
        ],
    )
    copy_rows.lines(Task._meta.db_table, _TASK, _tasks(cell, tables, axis=axis))
    copy_rows.values(
        Departure,
        ("task_id", "incarnation", "machine_id", "cause", "ports", "since"),
        [
            (row["task"], row["incarnation"], row["machine_id"], UNKNOWN_CAUSE, row["ports"], now)
            for row in tables["departures"].to_pylist()
        ],
    )
    copy_rows.values(
        CrashedPair,
        ("task_id", "machine_id", "at"),
        [(row["task"], row["machine_id"], _time(row["at"])) for row in tables["crashes"].to_pylist()],
    )
    copy_rows.rows(Update, [_update(row, actor) for row in tables["updates"].to_pylist()])


def _machines(cell: Cell, tables: Tables) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of machines, with the columns of `_MACHINE`. They have no valid secret, so no Borglet can connect
    for them.
    """
    held: dict[int, list[str]] = defaultdict(list)
    for row in tables["packages"].to_pylist():
        for machine in row["machines"]:
            held[machine].append(row["digest"])
    for row in tables["machines"].to_pylist():
        attributes = msgspec.json.decode(row["attributes"])
        facts = (row[name] for name in _FACTS)
        times = (cell.created_at, cell.created_at)
        identity = row["machine_id"]
        yield identity, cell.id, *facts, attributes, sorted(held[identity]), _NONE, 0, "", "", "", "", *times


def _pools(cell: Cell, tables: Tables, *, actor: str) -> Iterator[Pool]:
    """Yield the rows of machine pools. Older checkpoints have none."""
    for text in tables["pools"]["event"].to_pylist() if "pools" in tables else ():
        event = msgspec.json.decode(text, type=PoolSet)
        yield Pool(
            cell=cell,
            name=event.pool,
            description=event.description,
            selector=event.selector,
            tenants=list(event.tenants),
            dedicated=event.dedicated,
            use=event.use,
            others=event.others,
            changed_by=actor,
            changed_at=cell.created_at,
        )


def _jobs(
    cell: Cell, tables: Tables, *, bands: Sequence[Band], axis: int, actor: str, now: dt.datetime
) -> Iterator[Job]:
    tasks = tables["tasks"]
    state, placed = tasks["state"].to_numpy(), tasks["incarnation"].to_numpy() > 0
    # Tasks are sorted by id, so each job has one range of them.
    of = tasks["id"].to_numpy() >> INDEX_BITS
    for row in tables["jobs"].to_pylist():
        begin, end = np.searchsorted(of, [row["job_id"], row["job_id"] + 1]).tolist()
        numbers = np.bincount(state[begin:end], minlength=DEAD + 1).tolist()
        started = "running" if placed[begin:end].any() else "pending"
        yield Job(
            id=row["job_id"],
            uid=row["uid"],
            cell=cell,
            tenant_id=row["tenant_id"],
            name=row["name"],
            kind=row["job_kind"],
            alloc_set_id=row["alloc_set"] or None,
            labels=msgspec.json.decode(row["labels"]),
            priority=row["priority"],
            band=_band(row["priority"], bands),
            latency_sensitive=row["latency_sensitive"],
            port_names=row["port_names"],
            state="dead" if row["ended"] else started,
            spec_version=row["spec_version"],
            gang=row["gang"],
            disruption_budget=row["disruption_budget"],
            max_running=row.get("max_running") or 0,
            max_run_s=row.get("max_run_s") or None,
            ends_within_s=row.get("ends_within_s") or None,
            start_after=_time(row["start_after"]) if row.get("start_after") else None,
            waiting=bool(row.get("waiting")),
            published=msgspec.json.decode(row["published"]),
            requested=[0] * axis,
            tasks_total=end - begin,
            tasks_pending=numbers[PENDING],
            tasks_running=numbers[RUNNING],
            tasks_dead=numbers[DEAD],
            submitted_by=actor,
            created_at=_time(row["submitted_at"]),
            ended_at=now if row["ended"] else None,
        )


def _band(priority: int, bands: Sequence[Band]) -> str:
    try:
        return band_of(priority, bands).name
    except LookupError:  # another installation has other bands
        return ""


def _tasks(cell: Cell, tables: Tables, *, axis: int) -> Iterator[str]:
    """Yield the rows of tasks in the format of COPY, with the columns of `_TASK`."""
    texts = tables["requirements"]["requirement"].to_pylist()
    limits = [column(msgspec.json.decode(text, type=Requirement).limit) for text in texts]
    reserved = tables["reservations"]
    amounts = zip(*(reserved[f"r{r}"].to_pylist() for r in range(axis)), strict=True)
    reservations = dict(zip(reserved["id"].to_pylist(), map(column, amounts), strict=True))
    names = ("id", "state", "requirement", "machine_id", "incarnation", "alloc", "devices", "spec_version")
    since = map(dt.datetime.isoformat, map(_time, tables["tasks"]["since"].to_pylist()))
    columns = (tables["tasks"][name].to_pylist() for name in names)
    for *row, ports, at in zip(*columns, tables["tasks"]["ports"].to_pylist(), since, strict=True):
        identity, state, requirement, machine, incarnation, alloc, devices, version = row
        limit = limits[requirement]
        held = column(device for device in range(devices.bit_length()) if devices >> device & 1)
        yield (
            f"{identity}\t{cell.id}\t{identity >> INDEX_BITS}\t{identity & (MAX_TASKS - 1)}\t{STATES[state]}"
            f"\t{machine or NULL}\t{incarnation}\t{version}\t{limit}\t{reservations.get(identity, limit)}"
            f"\t{column(ports)}\t{alloc or NULL}\t{held}\t{at}\t\t\tf\t0\t0\t\t\n"
        )


def _update(row: dict[str, Any], actor: str) -> Update:
    return Update(
        job_id=row["job_id"],
        from_version=row["from_version"],
        to_version=row["to_version"],
        max_down=row["max_down"],
        undo=row["undo"],
        actor=actor,
        created_at=_time(row["at"]),
    )


def _digest(spec: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(spec, order="deterministic")).hexdigest()


def _time(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
