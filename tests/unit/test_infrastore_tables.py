"""Tests of converting journal events to tables with the names of Google's trace of 2019."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from scheduling.core.vocabulary import events as ev
from scheduling.core.vocabulary.requirement import Group, Requirement, task_id
from scheduling.history.infrastore.columns import DERIVED, TABLES
from scheduling.history.infrastore.tables import BEFORE, SCHEMAS, Conversion, JobFacts, machines_after

AT = dt.datetime(2026, 11, 27, 12, 0, 0, 250)
LIMIT = (1500, 2**30, 0, 0, 0, 0)


def journal(*events: Any, first: int = 1) -> pa.Table:
    """Return part of a journal with one event per revision, one second apart, from revision `first` on."""
    rows = []
    for number, event in enumerate(events):
        time = AT + dt.timedelta(seconds=number)
        rows.append(
            {
                "revision": first + number,
                "seq": 0,
                "time": time,
                "time_us": int(time.replace(tzinfo=dt.UTC).timestamp() * 1_000_000),
                "kind": event.__struct_config__.tag,
                "actor": "ann",
                "data": ev.encode(event).decode(),
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMAS["events"])


def convert(events: pa.Table, jobs: dict[int, JobFacts], **more: Any) -> dict[str, pa.Table]:
    return Conversion(jobs, **more).tables(events)


def rows_of(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in table.to_pylist()]


SUBMITTED = ev.JobSubmitted(
    job_id=7,
    uid="u",
    tenant_id=1,
    tenant="acme",
    name="web",
    job_kind="job",
    priority=200,
    latency_sensitive=True,
    spec_version=1,
    groups=(Group(Requirement(LIMIT, max_per_rack=2), ((0, 1),)),),
)


def test_a_job_and_its_tasks_are_submitted() -> None:
    found = convert(journal(SUBMITTED), {})
    names = (
        "type",
        "collection_id",
        "user",
        "collection_name",
        "priority",
        "scheduling_class",
        "tasks",
        "max_per_switch",
    )
    assert rows_of(found["collection_events"], *names) == [("submit", 7, "acme", "web", 200, 3, 2, 2)]
    names = ("type", "user", "instance_index", "resource_request_cpus", "resource_request_memory", "time", "revision")
    assert rows_of(found["instance_events"], *names) == [
        ("submit", "acme", index, 1.5, 2**30, AT, 1) for index in (0, 1)
    ]


def test_the_life_of_a_task() -> None:
    where = {"job_id": 7, "index": 1, "machine_id": 3, "incarnation": 2}
    found = convert(
        journal(
            ev.TaskPlaced(**where, score={"fit": 0.5}, victims=((9, 0),), alloc=task_id(4, 6), packages=(10, 30)),
            ev.TaskReported(**where, phase="up", health="healthy", up=True, restarts=1),
            ev.TaskEvicted(
                **where, cause="preemption", detail="d", preemptor=(8, 5), exit={"cause": "killed", "signal": 9}
            ),
            ev.TaskEvicted(**where, cause="lost"),
            ev.TaskEvicted(**where, cause="failure"),
            ev.TaskEnded(job_id=7, index=1, machine_id=0, incarnation=2, how="killed"),
            ev.TaskRevived(job_id=7, index=1, spec_version=2),
        ),
        {7: JobFacts("acme", "web", "job", 10, False)},
    )["instance_events"]
    assert rows_of(found, "type", "cause", "machine_id") == [
        ("schedule", None, 3),
        ("report", None, 3),
        ("evict", "preemption", 3),
        ("lost", "lost", 3),
        ("fail", "failure", 3),
        ("kill", None, None),
        ("submit", None, None),
    ]
    assert {row[0] for row in rows_of(found, "user")} == {"acme"}
    names = (
        "score",
        "victims",
        "alloc_collection_id",
        "alloc_instance_index",
        "package_bytes_installed",
        "package_bytes",
    )
    assert rows_of(found, *names)[0] == ([("fit", 0.5)], 1, 4, 6, 10, 30)
    assert rows_of(found, "phase", "health", "up", "restarts")[1] == ("up", "healthy", True, 1)
    names = ("preemptor_collection_id", "preemptor_instance_index", "exit_reason", "exit_signal", "detail")
    assert rows_of(found, *names)[2] == (8, 5, "killed", 9, "d")
    assert rows_of(found, "time_us")[1][0] - rows_of(found, "time_us")[0][0] == 1_000_000


def test_machines_and_their_attributes() -> None:
    def machine(**attributes: str) -> ev.MachineSet:
        values = {"machine_id": 3, "hostname": "m3", "address": "", "capacity": LIMIT, "rack": "r1"}
        return ev.MachineSet(**values, attributes=attributes)

    log = journal(machine(a="1", b="2"), machine(a="1"), ev.MachineState(machine_id=3, state="down", reason="silent"))
    found = convert(log, {})
    names = ("type", "machine_id", "machine_name", "switch_id", "capacity_cpus", "detail", "user")
    assert rows_of(found["machine_events"], *names) == [
        ("add", 3, "m3", "r1", 1.5, None, None),
        ("update", 3, "m3", "r1", 1.5, None, None),
        ("down", 3, None, None, None, "silent", None),
    ]
    assert rows_of(found["machine_attributes"], "name", "value", "deleted") == [
        ("a", "1", False),
        ("b", "2", False),
        ("a", "1", False),
        ("b", "", True),
    ]


def test_machines_are_followed_from_range_to_range() -> None:
    """Convert a journal in two parts. The second part begins with the machines that the rows of the first contain."""
    kept = {"hostname": "m", "address": "", "capacity": LIMIT}
    events = [
        ev.MachineSet(machine_id=3, **kept, attributes={"a": "1", "b": "2"}),
        ev.MachineSet(machine_id=4, **kept),
        ev.MachineState(machine_id=3, state="down", reason="silent"),
        ev.MachineSet(machine_id=3, **kept, attributes={"a": "1"}),
        ev.MachineRemoved(machine_id=3, reason="old"),
        ev.MachineSet(machine_id=3, **kept, attributes={"a": "5"}),
        ev.MachineSet(machine_id=4, **kept),
    ]
    whole = convert(journal(*events), {})
    types = [row[0] for row in rows_of(whole["machine_events"], "type")]
    assert types == ["add", "add", "down", "update", "remove", "add", "update"]
    names = ("name", "value", "deleted")
    assert rows_of(whole["machine_attributes"], *names)[2:] == [
        ("a", "1", False),
        ("b", "", True),
        ("a", "", True),
        ("a", "5", False),
    ]
    for cut in range(1, len(events)):
        first = convert(journal(*events[:cut]), {})
        for name, columns in BEFORE.items():
            before = machines_after(name, rows_of(first[name], *columns))
            second = convert(journal(*events[cut:], first=cut + 1), {}, machines=before)
            assert rows_of(pa.concat_tables([first[name], second[name]]), *columns) == rows_of(whole[name], *columns)


def test_reservations_are_one_row_per_task() -> None:
    event = ev.ReservationsSet(tasks=((7, 0), (8, 1)), reservations=((500, 10, 0), (250, 20, 0)))
    found = convert(journal(event), {7: JobFacts("acme", "web", "job", 10, False)})["reservations"]
    names = ("user", "collection_id", "instance_index", "reserved_cpus", "reserved_memory")
    assert rows_of(found, *names) == [("acme", 7, 0, 0.5, 10), (None, 8, 1, 0.25, 20)]


def test_a_range_may_be_split_anywhere() -> None:
    events = [
        SUBMITTED,
        ev.TaskPlaced(job_id=7, index=0, machine_id=3, incarnation=1),
        ev.JobEnded(job_id=7, how="failed"),
    ]
    whole = convert(journal(*events), {})
    facts = {7: JobFacts("acme", "web", "job", 200, True)}
    for cut in range(1, len(events)):
        parts = [convert(journal(*events[:cut]), {}), convert(journal(*events[cut:], first=cut + 1), facts)]
        for name in ("collection_events", "instance_events"):
            joined = pa.concat_tables([part[name] for part in parts]).drop_columns(["time", "time_us"])
            assert joined.equals(whole[name].drop_columns(["time", "time_us"]))


def test_every_table_has_an_owner_and_a_schema() -> None:
    assert set(SCHEMAS) == set(TABLES)
    for name, schema in SCHEMAS.items():
        assert "user" in schema.names, name
        assert TABLES[name].time in ("", *schema.names), name
    assert all(kinds for kinds in DERIVED.values())
