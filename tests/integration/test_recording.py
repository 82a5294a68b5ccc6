"""Tests of recording a simulation as a study cell on real PostgreSQL, and of simulating from its history."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Sum

from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import system
from scheduling.history.checkpoints.folder import checkpoints_of
from scheduling.history.checkpoints.rows import load_recorded, read_cell
from scheduling.history.checkpoints.state_at_moment import replay, state_at
from scheduling.history.checkpoints.tables import tables_of
from scheduling.history.statistics.tallies import TOTAL, Figure
from scheduling.journal import journal, partitions
from scheduling.journal.sql import query
from scheduling.master.invariants import validate
from scheduling.models import CapacitySample, Cell, InstanceUsage, Job, JournalTally, Machine, Task
from scheduling.recording.record import record
from scheduling.recording.requests import Wish
from scheduling.simulator.sessions.sources import open_source
from tests.integration import rows

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]
SRE = system("sre")
NOW = dt.datetime(2027, 1, 8, 12, 30, tzinfo=dt.UTC)
END = NOW.replace(minute=0)
WISH = Wish(name="recorded", machines=12, days=0.5, seed=3)


@pytest.fixture(autouse=True)
def home(settings, tmp_path: Path) -> Path:
    settings.BORG_HOME = tmp_path
    return tmp_path


def test_a_recorded_cell_has_a_whole_history_and_can_be_simulated_again(tmp_path: Path) -> None:
    rows.a_cell("other")
    done = record(principal=SRE, wish=WISH, now=NOW)
    cell = Cell.objects.get(name="recorded")
    _check_rows(cell)
    records = journal.tail(cell.id, after=0, limit=10**6)
    assert len(records) == done.events
    times = [one.time for one in records]
    assert times == sorted(times)
    assert END - dt.timedelta(hours=12) <= times[0] <= times[-1] <= END
    started = sum(type(one.event).__name__ == "TaskPlaced" for one in records)
    _check_figures(cell, done.windows)
    saved = checkpoints_of(cell.name)
    assert len(saved) == done.checkpoints == 2
    middle = saved[-1].header
    assert state_at(cell, revision=middle.revision).diff(_replayed(cell, middle.revision)) == []

    # The second half runs once more, in the simulator.
    file = tmp_path / "half.checkpoint"
    call_command("checkpoint", cell.name, output=file, revision=middle.revision, hours=6.0)
    simulation = open_source("checkpoint", file)
    assert simulation.state.diff(state_at(cell, revision=middle.revision)) == []
    simulation.run(6 * 3600.0)
    later = [one for one in records if one.revision > middle.revision]
    kinds = [type(one.event).__name__ for one in later]
    figures = simulation.cell.keeper.figures
    assert figures.submitted == kinds.count("JobSubmitted") > 0
    assert figures.placed == pytest.approx(kinds.count("TaskPlaced"), rel=0.1)
    assert sum(figures.ended.values()) == pytest.approx(kinds.count("TaskEnded"), rel=0.1)
    assert started > figures.placed > 0


def _check_rows(cell: Cell) -> None:
    assert validate(cell.id) == []
    assert validate(cell.id, load=load_recorded, replay=replay) == []
    assert cell.study_of is not None
    assert cell.study_of["recorded"] == {"seed": 3, "days": 0.5}
    assert Machine.objects.filter(cell=cell).count() == 12
    jobs = Job.objects.filter(cell=cell)
    assert {job.state for job in jobs} >= {"running", "dead"}
    assert {job.outcome for job in jobs if job.state == "dead"} <= {"finished", "failed"}
    assert not any(sum(job.requested) for job in jobs), "nothing is charged"
    tasks = Task.objects.filter(cell=cell)
    assert tasks.filter(up=True).count() > 0.9 * tasks.filter(state="running").count() > 0
    assert tasks.count() == jobs.aggregate(n=Sum("tasks_total"))["n"]
    header, tables = read_cell(cell.id)
    newest = checkpoints_of(cell.name)[0]
    assert (newest.header.revision, newest.header.history) == (header.revision, header.history)
    assert tables["requirements"] == tables_of(state_at(cell))["requirements"]


def _check_figures(cell: Cell, windows: int) -> None:
    tallies = JournalTally.objects.filter(cell=cell, hour=dt.datetime.fromtimestamp(TOTAL, dt.UTC))
    waits = tallies.filter(figure=Figure.START, label="total")
    assert 20 < sum(one.total for one in waits) / sum(one.number for one in waits) < 300
    usage = InstanceUsage.objects.filter(cell_id=cell.id)
    assert usage.count() == windows > 0
    assert all(0 < one.average_usage_cpus <= one.assigned_cpus for one in usage[:100])
    whole = CapacitySample.objects.get(cell=cell, band="", hour=END - dt.timedelta(hours=1))
    cpu = [getattr(whole, name)[0] for name in ("capacity", "limit", "reserved", "used")]
    assert cpu == sorted(cpu, reverse=True)
    assert cpu[-1] > 0


def _replayed(cell: Cell, revision: int):
    from scheduling.core.cell.state import CellState

    state = CellState()
    state.apply_all(
        (one.event, one.revision, one.time.timestamp())
        for one in journal.tail(cell.id, after=0, limit=10**6)
        if one.revision <= revision
    )
    return state


def test_partitions_of_cells_that_do_not_exist_are_dropped() -> None:
    cell = rows.a_cell()
    missing, reserved = cell.id + 100, cell.id + 101
    for cell_id in (missing, reserved):
        query("SELECT scheduling_event_partition_make(%s, 0)", [cell_id])
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(hashtext('scheduling_event_partition'), %s::integer)", [reserved])
        assert partitions.drop_orphans() == [f"scheduling_event_{missing}_0"]
    finally:
        other.close()
    with partitions.reserved(reserved):
        pass
    assert partitions.drop_orphans() == [f"scheduling_event_{reserved}_0"]
    assert partitions.drop_orphans() == []


def test_wrong_wishes_are_rejected_and_leave_nothing(home: Path) -> None:
    rows.a_cell("taken")
    for wish, problem in (
        (Wish(name="taken"), "already exists"),
        (Wish(name="Bad_Name"), "name"),
        (Wish(name="ns"), "reserved for the DNS zone"),
        (Wish(name="one", days=0), "days: 0 days are not accepted"),
        (Wish(name="one", machines=0), "machines: 0 machines are not accepted"),
        (Wish(name="one", seed=-1), "seed: the seed -1 is not accepted"),
    ):
        with pytest.raises((Rejected, Conflict), match=problem):
            record(principal=SRE, wish=wish, now=NOW)
    with pytest.raises(CommandError, match="needs a folder"):
        call_command("record", "one", source="openb")
    assert not Cell.objects.filter(name="one").exists()
    assert list(home.iterdir()) == []
