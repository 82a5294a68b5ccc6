"""Tests of simulations that begin with a checkpoint, and of a randomly drawn cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from quota.vocabulary.resources import CPU
from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.history.checkpoints import file
from scheduling.history.checkpoints.file import CheckpointError, Header
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.checkpoints.redact import redact
from scheduling.history.checkpoints.tables import Tables, tables_of
from scheduling.simulator.behaviour import Drawn
from scheduling.simulator.sessions.sources import open_source
from scheduling.simulator.simulation import Settings
from scheduling.simulator.traces import checkpoint, drawn
from scheduling.simulator.traces.recorded import Recorded, RecordedEnd, RecordedUsage
from tests.builders import GIB
from tests.unit.simulator.small_cells import job, machine

TAKEN_AT = 1_800_000_000.0
SETTINGS = {"reclamation": "baseline"}
Saved = tuple[RecordedState, Header, Tables]


@pytest.fixture
def saved() -> Saved:
    """Return a checkpoint with two machines and two jobs.

    The service has two running tasks, one with a lower reservation. One batch task crashed. The processes of the other
    batch task have not ended yet.
    """
    state = RecordedState()
    half = (500, GIB // 2, 100, 0, 0, 0)
    history: list[events.Event] = [
        machine(1),
        machine(2),
        job(7, tasks=2),
        job(8, tasks=2, priority=110),
        *(events.TaskPlaced(job_id=7, index=index, machine_id=1, incarnation=1) for index in range(2)),
        *(events.TaskPlaced(job_id=8, index=index, machine_id=2, incarnation=1) for index in range(2)),
        events.ReservationsSet(tasks=((7, 1),), reservations=(half,)),
        events.TaskEvicted(job_id=8, index=0, machine_id=2, incarnation=1, cause="failure", gone=True, avoid=True),
        events.TaskEvicted(job_id=8, index=1, machine_id=2, incarnation=1, cause="preemption"),
    ]
    state.apply_all((event, number, TAKEN_AT - 100.0) for number, event in enumerate(history, start=1))
    header = Header(cell="cc", revision=state.revision, taken_at=TAKEN_AT, history="h", settings=SETTINGS)
    return state, header, tables_of(state)


def written(path: Path, header: Header, tables: Tables) -> Path:
    with path.open("wb") as out:
        file.write(out, header, tables)
    return path


def following(*later: tuple[float, events.Event], ends: list[dict[str, Any]]) -> Tables:
    columns = {"task": pa.int64(), "incarnation": pa.int32(), "placed_at": pa.float64(), "at": pa.float64()}
    schema = pa.schema({**columns, "how": pa.string()})
    return {
        "endings": pa.Table.from_pylist(ends, schema=schema),
        "later": pa.table(
            {
                "at": pa.array([TAKEN_AT + at for at, _ in later], pa.float64()),
                "event": pa.array([events.encode(event).decode() for _, event in later], pa.string()),
            }
        ),
    }


def test_a_checkpoint_becomes_an_equal_cell_at_time_zero(saved: Saved, tmp_path: Path) -> None:
    state, header, tables = saved
    simulation = open_source("checkpoint", written(tmp_path / "one", header, tables), settings=Settings())
    loaded = simulation.state
    crashed = state.crashed.pop(task_id(8, 0))
    assert loaded.crashed.pop(task_id(8, 0)) == {2: crashed[2] - TAKEN_AT} == {2: -100.0}
    assert loaded.diff(state) == []
    assert simulation.now == 0.0
    assert simulation.settings.cell.reclamation == "baseline"
    assert loaded.departed
    simulation.run(15.0)
    assert not simulation.state.departed, "the processes of the evicted task have ended"
    assert simulation.cell.pending == 0


def test_usage_follows_from_reservations_unless_it_was_recorded(saved: Saved, tmp_path: Path) -> None:
    _, header, tables = saved
    ids = np.array([task_id(7, 0), task_id(7, 1)])
    limit = np.array([[1000, GIB, 100], [1000, GIB, 100]])
    found = checkpoint.load(written(tmp_path / "one", header, tables))
    demand = found.workload.behaviour.demand(ids, limit, np.array([200, 200]), 0.0)
    assert demand[1, :2].tolist() == [int(500 / 1.4), int(GIB / 2 / 1.4)]
    measured = [("task", ids[1:]), ("mean_cpu", [300]), ("mean_ram", [GIB]), ("mean_disk", [5])]
    measured += [("most_cpu", [400]), ("most_ram", [GIB]), ("most_disk", [5])]
    usage = pa.table({name: pa.array(values, pa.int64()) for name, values in measured})
    found = checkpoint.load(written(tmp_path / "two", header, {**tables, "usage": usage}))
    over_time = [
        found.workload.behaviour.demand(ids, limit, np.array([200, 200]), 300.0 * number)[1] for number in range(100)
    ]
    cpu = [int(row[CPU]) for row in over_time]
    assert 200 <= min(cpu) <= 205
    assert 395 <= max(cpu) <= 400
    assert 295 <= sum(cpu) / len(cpu) <= 305


def test_what_happened_afterwards_happens_again(saved: Saved, tmp_path: Path) -> None:
    _, header, tables = saved
    more = following(
        (60.0, job(9, tasks=3, priority=110)),
        (100.0, events.MachineState(machine_id=1, state="down")),
        (400.0, events.MachineState(machine_id=1, state="up")),
        (500.0, events.MachineRemoved(machine_id=2)),
        ends=[
            {"task": task_id(7, 0), "incarnation": 1, "placed_at": None, "at": TAKEN_AT + 30.0, "how": "killed"},
            {
                "task": task_id(9, 1),
                "incarnation": 1,
                "placed_at": TAKEN_AT + 70.0,
                "at": TAKEN_AT + 90.0,
                "how": "finished",
            },
        ],
    )
    path = written(tmp_path / "one", header, {**tables, **more})
    found = checkpoint.load(path)
    assert [(change.at, change.machine_id, change.facts is None) for change in found.workload.changes] == [
        (100.0, 1, True), (400.0, 1, False), (500.0, 2, True),
    ]  # fmt: skip
    behaviour = found.workload.behaviour
    assert behaviour.ending(task_id(7, 0), 1, 200) == (30.0, "killed")
    assert behaviour.ending(task_id(7, 0), 2, 200) == (130.0, "killed"), "another incarnation runs as long as the whole"
    assert behaviour.ending(task_id(9, 1), 1, 110) == (20.0, "finished")
    assert behaviour.ending(task_id(9, 0), 1, 110) is None, "it still ran at the end of the recorded time"
    simulation = open_source("checkpoint", path)
    simulation.run(95.0)
    figures = simulation.cell.keeper.figures
    assert (figures.submitted, figures.ended["killed"], figures.ended["finished"]) == (1, 1, 1)
    simulation.run(600.0)
    assert figures.failures == 2


def test_files_that_are_not_checkpoints_are_rejected(saved: Saved, tmp_path: Path) -> None:
    _, _, tables = saved
    with pytest.raises(FileNotFoundError, match="give the file of a checkpoint"):
        open_source("checkpoint", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="write checkpoint:FILE"):
        open_source("checkpoint", None)
    with pytest.raises(ValueError, match="needs a folder"):
        open_source("openb", None)
    newer = Header(cell="cc", revision=1, taken_at=0.0, history="h", settings={"of_tomorrow": 1})
    with pytest.raises(CheckpointError, match="of_tomorrow"):
        open_source("checkpoint", written(tmp_path / "one", newer, tables))


def test_a_redacted_file_opens_without_the_names_of_later_jobs(saved: Saved, tmp_path: Path) -> None:
    _, header, tables = saved
    header, changed = redact(header, {**tables, **following((60.0, job(9)), ends=[])}, key=b"k" * 32)
    assert changed.keys() == tables.keys() - {"windows"}, "reasons and host names of maintenance are left out"
    assert open_source("checkpoint", written(tmp_path / "one", header, changed)).cell.running == 2


def test_tasks_without_a_record_are_drawn() -> None:
    usual = Drawn(7)
    ids, limit, priority = np.array([5, 6]), np.full((2, 6), 1000), np.array([110, 110])
    empty = Recorded(RecordedUsage(), None, usual)
    assert empty.ending(5, 1, 110) == usual.ending(5, 1, 110)
    assert (empty.demand(ids, limit, priority, 0.0) == usual.demand(ids, limit, priority, 0.0)).all()
    ended = Recorded(RecordedUsage(), {5: RecordedEnd(1, 3.0, 9.0, "failed")}, usual)
    assert ended.ending(5, 1, 110) == (3.0, "failed")
    assert ended.ending(6, 1, 110) is None


def test_a_drawn_cell_has_services_and_a_rhythm_of_batch_jobs() -> None:
    beginning, workload = drawn.drawn(machines=40, days=7.0, seed=3)
    fleet = [event for event in beginning if isinstance(event, events.MachineSet)]
    services = [event for event in beginning if isinstance(event, events.JobSubmitted)]
    asked = sum(group.size * group.requirement.limit[CPU] for one in services for group in one.groups)
    assert 0.5 <= asked / sum(one.capacity[CPU] for one in fleet) < 0.65
    assert all(one.priority >= 120 for one in services)
    hours = np.bincount((workload.arrivals.times // 3600).astype(int), minlength=168)[:168].reshape(7, 24)
    weekdays = hours[:5].sum(axis=0)
    assert weekdays[12:18].sum() > 2 * weekdays[:6].sum(), "more jobs by day than at night"
    assert hours[5:].mean() < 0.8 * hours[:5].mean(), "fewer jobs at weekends"
    again, other = drawn.drawn(machines=40, days=7.0, seed=3)
    assert again == beginning
    assert other.arrivals.job(5) == workload.arrivals.job(5)
    assert len({workload.arrivals.job(n).job_id for n in range(len(workload.arrivals.times))} | {
        one.job_id for one in services
    }) == len(services) + len(workload.arrivals.times)  # fmt: skip
    state = CellState()
    state.load(((event, 0.0) for event in beginning), revision=1)
    assert state.validate() == []
