"""Tests of checkpoints on real PostgreSQL: what is saved, and the state of a cell at any revision."""

from __future__ import annotations

import datetime as dt
import io
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connection, transaction

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.core.cell.state import CellState
from scheduling.history.archive.store import store
from scheduling.history.checkpoints import saving
from scheduling.history.checkpoints.file import read
from scheduling.history.checkpoints.folder import checkpoints_of, open_checkpoint
from scheduling.history.checkpoints.rows import header_of, load_recorded, read_cell
from scheduling.history.checkpoints.saving import checkpoint_write
from scheduling.history.checkpoints.state_at_moment import replay, state_at
from scheduling.history.checkpoints.tables import tables_of
from scheduling.history.studies.studies import study_restore
from scheduling.journal import journal
from scheduling.journal.sql import execute
from scheduling.master.invariants import validate
from scheduling.master.snapshot import load_state
from scheduling.models import Cell
from tests.examples import examples
from tests.integration import rows, world
from tests.integration.checkpoint_history import History
from tests.integration.ranks import by_rank

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]
REVISIONS = 150
SRE = system("sre")


@pytest.fixture(autouse=True)
def home(settings, tmp_path: Path) -> Path:
    settings.BORG_HOME = tmp_path
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()
    return tmp_path


def fresh(cell: Cell) -> Cell:
    return Cell.objects.get(pk=cell.pk)


def test_the_state_at_many_random_revisions_equals_the_original() -> None:
    history = History(seed=15)
    cell, originals, saved = history.row, {}, 0
    while (revision := fresh(cell).revision) < REVISIONS:
        history.step()
        if revision > saved + 40:
            saved = revision
            checkpoint_write(cell.id)
        if revision % 8 == 0:
            original = load_state(cell.id)
            originals[original.revision] = original
            assert load_recorded(cell.id).diff(original) == []
    cell = fresh(cell)
    kinds = {type(record.event).__name__ for record in journal.tail(cell.id, after=0)}
    assert kinds >= {
        "MachineSet", "MachineState", "MachineRemoved", "PackagesHeld", "JobSubmitted", "JobChanged", "JobEnded",
        "TasksAdded", "TaskPlaced", "TaskEvicted", "TaskEnded", "TaskGone", "TaskUpdated", "ReservationsSet",
        "UpdateStarted", "UpdateEnded",
    }  # fmt: skip
    sample = sorted(random.Random(1).sample(range(1, cell.revision + 1), examples(100)))
    warm = CellState(tuple(cell.extra_resources))
    news = iter(journal.tail(cell.id, after=0, limit=10**6))
    record = next(news)
    for revision in sample:
        while record is not None and record.revision <= revision:
            warm.apply(record.event, revision=record.revision, time=record.time.timestamp())
            record = next(news, None)
        study = study_restore(principal=SRE, cell=cell, into=f"copy{revision}", revision=revision)
        assert by_rank(load_state(study.cell.id)) == by_rank(warm)
        state = state_at(cell, revision=revision)
        assert state.revision == revision
        assert state.diff(warm) == []
        if revision in originals:
            assert state.diff(originals[revision]) == []
        at = record.time if record is not None and record.revision == revision + 1 else None
        if at is not None:
            assert state_at(cell, time=at).revision == revision + 1
    assert tables_of(state_at(cell))["jobs"] == tables_of(load_recorded(cell.id))["jobs"]
    assert tables_of(state_at(cell))["updates"].drop(["at"]) == tables_of(load_recorded(cell.id))["updates"].drop(
        ["at"]
    )
    _check_a_journal_without_beginning(cell)


def _check_a_journal_without_beginning(cell: Cell) -> None:
    """Check that `validate` and later states need only the newest checkpoint and the rest of the journal."""
    newest, *_, oldest = [stored.header.revision for stored in checkpoints_of(cell.name)]
    with transaction.atomic():
        execute("SET LOCAL session_replication_role = replica")  # the journal is append-only
        execute("DELETE FROM scheduling_event WHERE cell_id = %s AND revision <= %s", [cell.id, newest - 5])
    assert state_at(cell, revision=oldest).revision == oldest  # this state needs no journal
    with pytest.raises(Rejected, match=f"the next revision in PostgreSQL is {newest - 4}"):
        state_at(cell, revision=oldest + 1)
    assert state_at(cell, revision=newest + 1).revision == newest + 1
    assert validate(cell.id, load=load_recorded, replay=replay) == []
    execute("UPDATE scheduling_task SET reservation[1] = 1 + reservation[1] WHERE id = (SELECT max(id) FROM"
            " scheduling_task WHERE cell_id = %s AND state = 'running')", [cell.id])  # fmt: skip
    (problem,) = validate(cell.id, load=load_recorded, replay=replay)[:1]
    assert "journal and rows differ" in problem


def test_checkpoints_are_due_and_dropped_by_their_age(cell, machine, home) -> None:
    now = dt.datetime.now(dt.UTC)
    assert saving.due(fresh(cell), now=now)
    key = checkpoint_write(cell.id)
    assert checkpoint_write(cell.id) == key, "the revision is the same"
    hour = dt.timedelta(hours=1)
    assert not saving.due(fresh(cell), now=now + 2 * hour), "nothing has changed"
    rows.a_machine(cell, "m2")
    assert not saving.due(fresh(cell), now=now + hour / 2)
    assert saving.due(fresh(cell), now=now + 2 * hour)
    checkpoint_write(cell.id)
    first, second = sorted(one.key for one in checkpoints_of(cell.name))
    days = dt.timedelta(days=1)
    assert saving.checkpoints_drop_old(cell, now=now + 23 * hour) == 0
    assert saving.checkpoints_drop_old(cell, now=now + 3 * days) == 1, "the first of a day stays"
    assert store().size(first)
    assert store().size(second) is None
    assert saving.checkpoints_drop_old(cell, now=now + 61 * days) == 1
    assert checkpoints_of(cell.name) == []


def test_values_of_the_environment_are_in_no_checkpoint(cell, machine, ann) -> None:
    world.submit(
        ann, cell, world.with_task(env={"DB_PASSWORD": "hunter2", "MODE": "quick-mode"}, plain_env=["DB_PASSWORD"])
    )
    with open_checkpoint(checkpoint_write(cell.id)) as file:
        _, tables = read(file)
    texts = [str(table.to_pylist()) for table in tables.values()]
    assert any("DB_PASSWORD" in text for text in texts)
    assert not any("hunter2" in text or "quick-mode" in text for text in texts)


def test_sres_list_show_and_download_checkpoints(cell, machine, ann, home) -> None:
    world.submit(ann, cell, world.a_file())
    path = home / "archive" / checkpoint_write(cell.id)
    sre = world.bearer(world.a_user("sre", sre=True))
    base = f"/api/v1/cells/{cell.name}/checkpoints/"
    (listed,) = sre.get(base).json()
    assert (listed["revision"], listed["size_bytes"]) == (fresh(cell).revision, path.stat().st_size)
    shown = sre.get(f"{base}{listed['revision']}/").json()
    assert {one["name"]: one["rows"] for one in shown["sections"]}["tasks"] == 3
    content = b"".join(sre.get(f"{base}{listed['revision']}/content/").streaming_content)
    assert content == path.read_bytes()
    redacted = b"".join(sre.get(f"{base}{listed['revision']}/redacted/").streaming_content)
    header, tables = read(io.BytesIO(redacted))
    assert header.redacted
    assert tables["tasks"] == read(io.BytesIO(content))[1]["tasks"]
    assert "web" not in tables["jobs"]["name"].to_pylist()
    path.write_bytes(content[:-1])
    damaged = sre.get(f"{base}{listed['revision']}/")
    assert (damaged.status_code, damaged.json()["code"]) == (409, "checkpoint-damaged")
    assert damaged.json()["fields"] == {"section": "updates"}
    assert state_at(fresh(cell)).diff(load_state(cell.id)) == [], "a damaged checkpoint is skipped"


def test_a_submission_does_not_wait_for_a_checkpoint(cell, machine, ann) -> None:
    """A job is submitted while the transaction that reads a checkpoint is still open. The submission does not wait."""

    def submit() -> None:
        try:
            execute("SET lock_timeout = '100ms'")
            world.submit(ann, cell, world.a_file())
        finally:
            connection.close()

    before = fresh(cell).revision
    with transaction.atomic(), ThreadPoolExecutor(1) as threads:
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        header, _ = read_cell(cell.id)
        threads.submit(submit).result(60)
        assert header.revision == before
        assert header_of(cell.id).revision == before, "the snapshot does not see the submission"
    assert fresh(cell).revision == before + 1
