"""Tests of study cells on real PostgreSQL: copies of cells at one moment, from the journal, the archive, or a file."""

from __future__ import annotations

import datetime as dt
import io
import random
from pathlib import Path

import pytest
from django.utils import timezone

from naming.following.names_from_database import cell_facts
from quota.models import QuotaUse, Tenant
from quota.vocabulary.errors import Conflict, Forbidden, Rejected
from quota.vocabulary.permissions import system
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.store import store
from scheduling.history.checkpoints import file
from scheduling.history.checkpoints.file import Header
from scheduling.history.checkpoints.folder import checkpoints_of
from scheduling.history.checkpoints.redact import redact
from scheduling.history.checkpoints.rows import load_recorded, read_cell
from scheduling.history.checkpoints.saving import checkpoint_write
from scheduling.history.checkpoints.state_at_moment import replay, state_at
from scheduling.history.studies import requests
from scheduling.history.studies.deletion import study_delete
from scheduling.history.studies.studies import study_import, study_restore
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.link.shard import writer
from scheduling.machines.machines import machines_drain
from scheduling.master import schedulers
from scheduling.master.invariants import validate
from scheduling.master.snapshot import load_state
from scheduling.models import ArchiveFile, Cell, Event, Job, JobSpec, Machine, Task
from scheduling.pools.pools import pool_write
from tests.integration import rows, world
from tests.integration.checkpoint_history import History
from tests.integration.past import skipped_to
from tests.integration.portal_server import database_url
from tests.integration.portal_world import signed_in
from tests.integration.ranks import by_rank

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]
SRE = system("sre")
DAY = dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def home(settings, tmp_path: Path) -> Path:
    settings.BORG_HOME = tmp_path
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()
    return tmp_path


def fresh(cell: Cell) -> Cell:
    return Cell.objects.get(pk=cell.pk)


def rows_of_cells() -> list[tuple[int, ...]]:
    tables = ("cell", "machine", "job", "jobspec", "task", "departure", "crashedpair", "update")
    return [query(f"SELECT count(*) FROM scheduling_{table}")[0] for table in tables]


def a_checkpoint(cell: Cell) -> tuple[Header, dict]:
    return read_cell(cell.id)


def packed(header: Header, tables: dict) -> io.BytesIO:
    content = io.BytesIO()
    file.write(content, header, tables)
    content.seek(0)
    return content


def test_a_study_cell_is_a_copy_that_nobody_can_change(cell, machine, ann, tenant) -> None:
    job = world.submit(ann, cell, world.with_task(env={"DB_PASSWORD": "hunter2"}, plain_env=["DB_PASSWORD"]))
    world.bring_up(job, machine)
    pool_write(principal=SRE, cell=cell, name="gpu", selector="rack=r1", tenants=["ubar"], dedicated=True)
    used = list(QuotaUse.objects.values_list("cell", "used"))
    before, original = fresh(cell), load_state(cell.id)
    world.submit(ann, cell, world.a_file("later"))
    study = study_restore(principal=SRE, cell=fresh(cell), into="copy", revision=before.revision)
    copy = fresh(study.cell)
    assert (study.machines, study.jobs, study.tasks, study.made_specs) == (1, 1, 3, 0)
    assert by_rank(load_state(copy.id)) == by_rank(original)
    assert validate(copy.id, load=load_recorded, replay=replay) == []
    (record,) = journal.tail(copy.id, after=0)
    assert (record.event.cell, record.event.revision, record.actor) == (cell.name, before.revision, SRE.name)
    assert copy.revision == record.revision == before.revision + 1
    assert [(one.name, one.tenants, one.dedicated) for one in copy.pools.all()] == [("gpu", ["ubar"], True)]
    copied = Job.objects.get(cell=copy)
    assert copied.uid != job.uid
    assert copied.created_at == Job.objects.get(pk=job.pk).created_at
    assert JobSpec.objects.get(job=copied).spec["task"]["env"] == {"DB_PASSWORD": ""}
    assert list(QuotaUse.objects.values_list("cell", "used")) != used  # the difference is the use of the later job
    assert not QuotaUse.objects.filter(cell="copy").exists()

    with pytest.raises(Conflict, match="cell copy is a study cell"):
        world.submit(SRE, copy, world.a_file("new"), tenant=tenant.name)
    with pytest.raises(Conflict, match="nobody can change"):
        machines_drain(principal=SRE, cell=copy, machines=list(Machine.objects.filter(cell=copy)), reason="x")
    assert fresh(copy).revision == copy.revision
    assert [name for name, _ in schedulers.unheld()] == [one.name for one in writer.cells([])] == [cell.name]
    assert [facts.name for facts in cell_facts()] == [cell.name]

    member, sre = world.bearer(world.a_user("ann")), world.bearer(world.a_user("root", sre=True))
    assert [one["name"] for one in member.get("/api/v1/cells/").json()["results"]] == [cell.name]
    assert member.get("/api/v1/cells/copy/jobs/ubar/web/").status_code == 404
    assert sre.get("/api/v1/cells/copy/jobs/ubar/web/").json()["name"] == "web"
    assert sre.get("/api/v1/cells/copy/").json()["study_of"]["revision"] == before.revision

    browser = signed_in("root")
    assert f"/jobs/{cell.name}/ubar/web/" in browser.get("/names/").text
    assert "/jobs/copy/" not in browser.get("/names/").text
    assert "<option>copy" not in browser.get("/submit/").text

    assert sre.delete(f"/api/v1/studies/{cell.name}/").json()["code"] == "not-a-study"
    assert sre.delete("/api/v1/studies/copy/?dry_run=1").status_code == 204
    assert Task.objects.filter(cell=copy).count() == 3
    assert sre.delete("/api/v1/studies/copy/").status_code == 204
    assert not Cell.objects.filter(name="copy").exists()
    assert not Event.objects.filter(cell_id=copy.id).exists()
    assert checkpoints_of("copy") == []
    assert query("SELECT count(*) FROM scheduling_event_partition WHERE cell_id = %s", [copy.id]) == [(0,)]
    assert validate(cell.id) == []


def test_a_process_creates_one_study_cell_at_a_time(cell) -> None:
    with requests._child, pytest.raises(Rejected, match="restores another cell") as error:
        requests.study_restore_requested(principal=SRE, cell=fresh(cell), into="copy", revision=cell.revision)
    assert error.value.status == 503


def test_a_moment_whose_events_are_only_in_the_archive_is_restored() -> None:
    history = History(seed=7)
    cell = history.row
    originals, times = {}, {}
    while (revision := fresh(cell).revision) < 40:
        history.step()
        originals[revision] = load_state(cell.id) if fresh(cell).revision == revision else None
    originals = {revision: state for revision, state in originals.items() if state is not None}
    records = journal.tail(cell.id, after=0, limit=10**6)
    times = {record.revision: record.time for record in records}
    wanted = sorted(random.Random(1).sample(range(1, 40), 10))
    states = {revision: state_at(fresh(cell), revision=revision) for revision in wanted}
    skipped_to(cell, 100_000)
    rows.a_machine(cell, "after")
    Archiver(store()).run(now=timezone.now() + 20 * DAY)
    assert not Event.objects.filter(cell_id=cell.id, revision__lte=40).exists()
    cell = fresh(cell)
    for revision in wanted:
        state = state_at(cell, revision=revision)
        assert state.diff(states[revision]) == []
        assert state_at(cell, time=times[revision]).revision == revision
    study = study_restore(principal=SRE, cell=cell, into="copy", time=times[wanted[-1]])
    assert by_rank(load_state(study.cell.id)) == by_rank(states[wanted[-1]])

    ArchiveFile.objects.filter(cell=cell, first=1).update(state="deleted")
    with pytest.raises(
        Rejected, match=r"the events of the revisions 1 to \d+ .* are no longer in the archive"
    ) as error:
        state_at(cell, revision=wanted[0])
    assert error.value.code == "history-missing"
    with pytest.raises(Rejected, match="is unknown"):
        state_at(cell, time=times[wanted[0]])
    with pytest.raises(Rejected, match="no longer in the archive"):
        study_restore(principal=SRE, cell=cell, into="other", revision=wanted[0])
    assert not Cell.objects.filter(name="other").exists()


def test_a_redacted_checkpoint_becomes_a_study_cell() -> None:
    history = History(seed=3)
    while fresh(history.row).revision < 30:
        history.step()
    header, tables = redact(*a_checkpoint(fresh(history.row)), key=b"k" * 32)
    before, tenants = rows_of_cells(), Tenant.objects.count()
    dry = study_import(principal=SRE, source=packed(header, tables), into="foreign", dry_run=True)
    assert (rows_of_cells(), Tenant.objects.count()) == (before, tenants), "a dry run changes nothing"
    study = study_import(principal=SRE, source=packed(header, tables), into="foreign")
    assert (study.machines, study.jobs, study.tasks) == (dry.machines, dry.jobs, dry.tasks)
    assert study.made_specs > 0
    copy = fresh(study.cell)
    assert (copy.study_of["redacted"], copy.study_of["cell"]) == (True, header.cell)
    original, found = by_rank(load_state(history.row.id)), by_rank(load_state(copy.id))
    assert found["departure"] == original["departure"]
    assert found["crash"] == original["crash"]
    for task, facts in original["task"].items():
        assert {**found["task"][task], "requirement": None} == {**facts, "requirement": None}
        if "requirement" in facts:
            assert found["task"][task]["requirement"].limit == facts["requirement"].limit
    assert validate(copy.id, load=load_recorded, replay=replay) == []
    assert not Job.objects.filter(cell=copy, name__in=["web", "db", "shelf"]).exists()
    assert Tenant.objects.count() == tenants + 1
    assert [stored.header.cell for stored in checkpoints_of("foreign")] == ["foreign"]
    study_delete(principal=SRE, cell=copy)
    assert (rows_of_cells(), Tenant.objects.count()) == (before, tenants)


def test_an_unusual_file_is_rejected_and_changes_nothing(cell, machine, ann) -> None:
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    header, tables = a_checkpoint(fresh(cell))
    content, before = packed(header, tables).getvalue(), rows_of_cells()

    def rejected(source: bytes | dict, section: str, match: str) -> None:
        stream = io.BytesIO(source) if isinstance(source, bytes) else packed(header, source)
        with pytest.raises(Rejected, match=match) as error:
            study_import(principal=SRE, source=stream, into="bad")
        assert (error.value.code, error.value.fields) == ("checkpoint-damaged", {"section": section})
        assert rows_of_cells() == before

    rejected(content[:-1], "updates", "truncated")
    rejected(content[:-1] + bytes([content[-1] ^ 1]), "updates", "checksum")
    rejected(content[:8] + b"\x02" + content[9:], "header", "format version 2")
    rejected(b"", "header", "does not begin like a checkpoint")
    for section in ("machines", "tasks", "updates", "requirements"):
        rejected({name: one for name, one in tables.items() if name != section}, section, "is missing")
    rejected({**tables, "jobs": tables["jobs"].drop(["gang"])}, "jobs", "gang")
    rejected({**tables, "machines": changed(tables["machines"], "hostname", "../x")}, "machines", "is not a valid name")
    rejected({**tables, "jobs": changed(tables["jobs"], "labels", "[]")}, "jobs", "labels")
    rejected({**tables, "tasks": changed(tables["tasks"], "state", 0)}, "tasks", "other values than")
    rejected({**tables, "tasks": changed(tables["tasks"], "machine_id", 10**6)}, "tasks", "contradict")
    rejected({**tables, "tasks": changed(tables["tasks"], "requirement", 9)}, "tasks", "contradict")
    rejected({**tables, "machines": changed(tables["machines"], "state", "new")}, "tasks", "contradict")
    for name, code in (("bad name", "invalid"), (cell.name, "cell-exists"), ("ns", "reserved-name")):
        with pytest.raises(Rejected) as error:
            study_import(principal=SRE, source=io.BytesIO(content), into=name)
        assert error.value.code == code
    with pytest.raises(Forbidden):
        study_import(principal=ann, source=io.BytesIO(content), into="copy")
    with pytest.raises(Forbidden):
        study_restore(principal=ann, cell=fresh(cell), into="copy", revision=1)
    with pytest.raises(Rejected, match="is not a revision"):
        study_restore(principal=SRE, cell=fresh(cell), into="copy", revision=10**9)
    assert rows_of_cells() == before


def changed(table, column: str, value: object):
    import pyarrow as pa

    place, field = table.column_names.index(column), table.schema.field(column)
    return table.set_column(place, field, pa.array([value] * table.num_rows, field.type))


def test_sres_restore_and_import_over_rest(cell, machine, ann, monkeypatch, home) -> None:
    monkeypatch.setenv("BORG_DATABASE_URL", database_url())
    monkeypatch.setenv("BORG_HOME", str(home))
    world.submit(ann, cell, world.a_file())
    checkpoint_write(cell.id)
    sre = world.bearer(world.a_user("root", sre=True))
    path = f"/api/v1/cells/{cell.name}/checkpoints:restore"
    now = {"into": "copy", "time": timezone.now().isoformat()}
    done = sre.post(path, now, content_type="application/json")
    assert done.status_code == 201, done.content
    facts = {"of": cell.name, "revision": fresh(cell).revision, "redacted": False, "made_specs": 0}
    assert done.json() == {"cell": "copy", **facts, "machines": 1, "jobs": 1, "tasks": 3}
    again = sre.post(path, now, content_type="application/json")
    assert (again.status_code, again.json()["code"]) == (409, "cell-exists")
    both = sre.post(path, {**now, "into": "more", "revision": 1}, content_type="application/json")
    assert (both.status_code, both.json()["fields"].keys()) == (422, {"revision"})

    (stored,) = checkpoints_of(cell.name)
    with stored.open() as source:
        content = source.read()
    damaged = sre.put("/api/v1/studies/two/", content[:-1], content_type="application/octet-stream")
    assert (damaged.status_code, damaged.json()["fields"]) == (422, {"section": "updates"})
    opened = sre.put("/api/v1/studies/two/", content, content_type="application/octet-stream")
    assert opened.json() == {"cell": "two", **facts, "machines": 1, "jobs": 1, "tasks": 3}
    assert Cell.objects.filter(study_of__isnull=False).count() == 2
