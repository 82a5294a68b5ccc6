"""Tests of the deletion of cells on real PostgreSQL: what is in the way, what stays readable, and a new cell with the
same name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from naming.following.names_from_database import cell_facts
from quota import clock
from quota.billing.ledger_check import ledger_check
from quota.billing.metering import meter
from quota.market import grants, orders
from quota.models import Capability, CellCapacity, MeteredHour, Quota, Record
from quota.vocabulary.errors import Conflict, NotFound
from quota.vocabulary.permissions import CapabilityKind, system
from scheduling import celery_tasks
from scheduling.cells.cells import cell_create, check_new
from scheduling.cells.deletion import cell_delete, cell_deletion
from scheduling.core.vocabulary.states import JobState
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.store import USAGE, store
from scheduling.history.checkpoints.folder import checkpoints_of, own_checkpoints
from scheduling.history.checkpoints.saving import checkpoint_write
from scheduling.jobs import submit_and_kill
from scheduling.journal import journal
from scheduling.journal.sql import execute
from scheduling.link.shard import writer
from scheduling.machines import joining, last_contact
from scheduling.master import lease, schedulers, standbys
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.master.process import MasterProcess
from scheduling.models import (
    ArchiveFile,
    Cell,
    Drain,
    Event,
    Job,
    JoinToken,
    Machine,
    MeteringHour,
    Package,
    PromisedEviction,
    PromiseReader,
)
from scheduling.packages.store import store as package_store
from scheduling.packages.sweep import cells_to_sweep, packages_sweep
from scheduling.usage import metering, usage_windows
from tests.integration import cli_world, link_world, market_rows, portal_world, rows, world
from tests.integration.past import used

pytestmark = pytest.mark.django_db(transaction=True)
SRE = system("sre")
DAY, HOUR = dt.timedelta(days=1), dt.timedelta(hours=1)


@pytest.fixture(autouse=True)
def home(settings, tmp_path: Path) -> Iterator[Path]:
    settings.BORG_HOME = tmp_path
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()
    settings.BORG_PACKAGE_STORE = (tmp_path / "packages").as_uri()
    yield tmp_path
    for hour in usage_windows.stored_hours():
        execute(f"DROP TABLE {usage_windows.partition(hour)}")


@pytest.fixture
def sre() -> Client:
    return world.bearer(world.a_user("root", sre=True))


def fresh(cell: Cell) -> Cell:
    return Cell.objects.get(pk=cell.pk)


def emptied(cell: Cell) -> Cell:
    """Remove everything that is in the way of the deletion of a cell."""
    for job in Job.objects.filter(cell=cell).exclude(state=JobState.DEAD.value):
        submit_and_kill.job_kill(principal=SRE, job=job)
    for machine in Machine.objects.filter(cell=cell):
        rows.machine_down(machine)
    for quota in Quota.objects.filter(cell=cell.name):
        grants.quota_end(principal=SRE, quota=quota)
    return fresh(cell)


def deleted(cell: Cell) -> Cell:
    return cell_delete(principal=SRE, cell=emptied(cell), confirm=cell.name)


def test_live_jobs_machines_and_sold_quota_are_each_in_the_way(cell, machine, ann, tenant, sre) -> None:
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    rows.a_package(cell, tenant)
    path, before = f"/api/v1/cells/{cell.name}/", fresh(cell)
    preview = sre.get(f"{path}deletion/").json()
    assert (preview["jobs"], preview["tasks"], preview["machines"]["up"], preview["packages"]) == (1, 3, 1, 1)
    assert (preview["dns_zone"], preview["dns_names"]) == ("cc.borg.internal", 5)
    assert (preview["quota"]["grants"], preview["quota"]["until"], preview["tenants"]) == (2, None, [tenant.name])
    answer = sre.delete(f"{path}?confirm={cell.name}")
    assert (answer.status_code, answer.json()["code"]) == (409, "cell-in-use")
    assert answer.json()["fields"] == preview["problems"]
    assert preview["problems"] == {
        "jobs": "the cell has 1 live job; kill all jobs first",
        "machines": "the cell has 1 machine in state up or draining; drain and remove all machines first",
        "quota": (
            "the cell has sold quota (2 grants and 0 waiting orders without an end, of ubar); cancel the orders, which"
            " refunds them, and end other grants first"
        ),
    }
    submit_and_kill.job_kill(principal=SRE, job=Job.objects.get())
    assert list(cell_deletion(principal=SRE, cell=cell).problems) == ["machines", "quota"]
    rows.machine_down(machine)
    assert list(cell_deletion(principal=SRE, cell=cell).problems) == ["quota"]
    assert (fresh(cell).name, fresh(cell).deleted_at) == (before.name, None)
    assert not Record.objects.filter(kind="cell.deleted").exists()


def test_an_order_that_begins_later_is_in_the_way_until_it_is_cancelled() -> None:
    cell = rows.a_cell()
    market_rows.a_selling_cell(cell.name)
    tenant = market_rows.a_rich_tenant()
    with clock.at(market_rows.NOW):
        order = market_rows.place(tenant, begin=2)
        problems = cell_deletion(principal=SRE, cell=cell).problems
        assert list(problems) == ["quota"]
        assert "0 grants and 1 waiting order until 2027-01-16 00:00 UTC, of ubar" in problems["quota"]
        orders.order_cancel(principal=SRE, order=order, reason="the cell ends")
        cell_delete(principal=SRE, cell=cell, confirm=cell.name)
        with pytest.raises(NotFound, match="cell"):
            market_rows.place(tenant, begin=3)
    assert market_rows.money(tenant) == (100_000, 0)
    assert ledger_check() == []


def test_only_an_sre_deletes_a_cell_and_types_its_name(cell, tenant, ann, sre) -> None:
    emptied(cell)
    owner, path = world.bearer(world.a_user("olga", tenant=tenant)), f"/api/v1/cells/{cell.name}/"
    assert owner.get(f"{path}deletion/").status_code == 403
    assert owner.delete(f"{path}?confirm={cell.name}").status_code == 403
    for confirm in ("", "?confirm=dd"):
        answer = sre.delete(path + confirm)
        assert (answer.status_code, list(answer.json()["fields"])) == (422, ["confirm"])
    assert sre.delete(f"{path}?confirm={cell.name}&dry_run=1").json()["deleted_name"] == cell.name
    assert fresh(cell).deleted_at is None
    assert sre.get("/api/v1/cells/?deleted=maybe").status_code == 422
    assert owner.get("/api/v1/cells/?deleted=1").status_code == 403


def test_a_deleted_cell_is_hidden_and_sres_read_its_history(cell, machine, ann, tenant, sre) -> None:
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    user = world.a_user("olga", tenant=tenant)
    for where in (cell.name, "", "dd"):
        Capability.objects.create(user=user, kind=CapabilityKind.SHELL.value, cell=where, reason="x", granted_by="y")
    joining.join_token_issue(principal=SRE, cell=cell)
    last_contact.wakeups.client().zadd(last_contact.key("contact", cell.id), {str(machine.id): 1.0})
    emptied(cell)
    Drain.objects.create(machine=machine, began_at=timezone.now(), tasks=0)
    PromiseReader.objects.create(cell=cell)
    PromisedEviction.objects.create(
        cell=cell, revision=1, seq=0, job_uid=job.uid, index=0, at=timezone.now(), cause="x"
    )
    gone = sre.delete(f"/api/v1/cells/cc/?confirm={cell.name}").json()["name"]
    assert gone == f"cc.deleted-{cell.id}"

    cell = fresh(cell)
    assert validate(cell.id) == []
    row = Machine.objects.get()
    assert (row.state, row.secret_digest, Drain.objects.count(), JoinToken.objects.count()) == ("removed", "", 0, 0)
    assert not PromiseReader.objects.exists()
    assert not PromisedEviction.objects.exists()
    assert writer.authenticate([(row.hostname, "secret")], [cell.id]) == [None]
    assert last_contact.wakeups.client().exists(last_contact.key("contact", cell.id)) == 0
    assert (schedulers.unheld(), writer.cells([]), writer.cells(["cc"]), cell_facts()) == ([], [], [], [])
    assert not CellCapacity.objects.filter(cell="cc").exists()
    assert sorted(Capability.objects.values_list("cell", flat=True)) == ["", "dd"]
    record = Record.objects.get(kind="cell.deleted")
    assert (record.actor, record.data) == ("root", {"cell": "cc", "capabilities": ["shell of olga"]})
    kinds = [record.event.__struct_config__.tag for record in journal.tail(cell.id, after=cell.revision - 1)]
    assert kinds == [*["task.gone"] * 3, "machine.removed", "cell.deleted"]
    with pytest.raises(Conflict, match="was deleted on"), journal.write(cell.id, SRE):
        pass
    assert journal.ensure_partitions() == 0

    owner, browser = world.bearer(user), portal_world.Client()
    browser.force_login(user, backend=portal_world._BACKEND)
    assert owner.get("/api/v1/cells/").json()["results"] == sre.get("/api/v1/cells/").json()["results"] == []
    for name in ("cc", gone):
        assert owner.get(f"/api/v1/cells/{name}/").status_code == 404
        assert owner.get(f"/api/v1/cells/{name}/jobs/ubar/web/").status_code == 404
        assert browser.get(f"/cells/{name}/").status_code == 404
    assert "/ubar/web/" not in browser.get("/jobs/?state=dead").text
    (listed,) = sre.get("/api/v1/cells/?deleted=true").json()["results"]
    assert (listed["name"], listed["deleted_name"]) == (gone, "cc")
    assert sre.get(f"/api/v1/cells/{gone}/jobs/ubar/web/").json()["state"] == "dead"
    assert sre.get(f"/api/v1/cells/{gone}/events/").json()["results"][0]["kind"] == "cell.deleted"
    assert sre.delete(f"/api/v1/cells/{gone}/?confirm={gone}").json()["code"] == "cell-deleted"
    assert sre.post(f"/api/v1/cells/{gone}/join-tokens/", {}, content_type="application/json").status_code == 409


def test_a_new_cell_of_the_same_name_shares_nothing_with_the_deleted_one(cell, machine, ann, tenant, sre) -> None:
    job = world.submit(ann, cell, world.a_file())
    checkpoint_write(cell.id)
    old = deleted(cell)
    new = cell_create(principal=SRE, name="cc")
    assert (new.history_id == old.history_id, new.revision) == (False, 1)
    assert not CellCapacity.objects.filter(cell="cc").exists()
    rows.grant(tenant, new, "production")
    assert world.submit(ann, new, world.a_file()).uid != job.uid
    assert sre.get("/api/v1/cells/cc/jobs/?state=dead").json()["results"] == []
    checkpoint_write(new.id)
    assert [len(own_checkpoints(each)) for each in (old, new)] == [1, 1]
    assert [len(checkpoints_of(each.folder)) for each in (old, new)] == [1, 1]
    deleted(cell_create(principal=SRE, name="dd"))
    with pytest.raises(Conflict, match="a deleted cell had the name"):
        check_new(Cell(name="dd"))  # a study cell would use the same folder

    for each in (old, new):  # usage of the same day
        used(each, 2, at=timezone.now(), job_id=job.id + each.id)
    Archiver(store()).run(now=timezone.now() + 2 * DAY)
    files = ArchiveFile.objects.filter(table=USAGE)
    assert sorted(file.cell_id for file in files if file.rows) == [old.id, new.id]
    assert len({file.key for file in ArchiveFile.objects.all()}) == ArchiveFile.objects.count()
    Archiver(store()).run(now=timezone.now() + 3 * DAY)
    for file in ArchiveFile.objects.all():
        assert store().size(file.key) == file.bytes
    count = ArchiveFile.objects.filter(cell=old).count()
    used(new, 2, at=timezone.now() + 3 * DAY, job_id=job.id)
    Archiver(store()).run(now=timezone.now() + 5 * DAY)
    assert ArchiveFile.objects.filter(cell=old).count() == count, "a deleted cell has no more usage"


def test_the_last_hours_of_a_deleted_cell_are_metered_under_its_name(cell, machine, ann, tenant) -> None:
    now = timezone.now().replace(minute=20, second=0, microsecond=0)
    job = world.submit(ann, cell, world.a_file())
    Job.objects.filter(pk=job.pk).update(created_at=now - HOUR)
    metering.look(cell, now=now - HOUR)
    old = deleted(cell)
    hours = metering.meter_due(old, now=now + 9 * HOUR, keep_hours=100, meter=meter)
    assert hours[0] == now.replace(minute=0) - HOUR
    assert set(MeteredHour.objects.values_list("cell", "job")) == {("cc", "web")}
    assert hours[-1] == old.deleted_at.replace(minute=0, second=0, microsecond=0)
    celery_tasks.metering_run()
    assert not MeteringHour.objects.filter(hour__gt=hours[-1]).exists(), "no hour after the deletion is sampled"
    celery_tasks.statistics()
    celery_tasks.checkpoints_run()


def test_masters_and_standbys_of_a_deleted_cell_stop_and_wait(cell, caplog) -> None:
    master, standby, process = Master(cell.id), Master(cell.id, holder="host-b:7:0-1"), MasterProcess("cc")
    for one in (master, standby):
        one.prepare()
    assert master.run(0.0) is True
    standby.stand_by(0.0)
    assert [one.holder for one in standbys.present()[cell.id, "default"]]
    deleted(cell)
    master._kept = 0.0
    assert (master.run(5.0), master.wanted) == (False, False)
    standby.stand_by(5.0)
    assert not standby.wanted
    assert (lease.held(), standbys.present()) == (set(), {})
    assert (process._turn(), process._turn(), process._waits_for) == (False, False, "a cell named cc")
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


def test_the_link_closes_the_connection_of_a_machine_of_a_deleted_cell(cell) -> None:
    with link_world.running_link() as link, link.machine(cell) as played:
        played.keep_answering(lambda: Machine.objects.get().state == "up")
        rows.machine_down(Machine.objects.get())
        cell_delete(principal=SRE, cell=fresh(cell), confirm="cc")
        with pytest.raises(Exception, match="removed"):
            played.keep_answering(lambda: False)


def test_packages_of_a_deleted_cell_are_swept_and_those_of_a_new_one_stay(cell, tenant, tmp_path, monkeypatch) -> None:
    digests = [f"sha256:{digit * 64}" for digit in "ab"]
    for digest in digests:
        rows.a_package(cell, tenant, name=f"p{digest[-1]}", digest=digest)
        (tmp_path / "draft").write_bytes(b"x")
        package_store().put("cc", digest, tmp_path / "draft")
    emptied(cell)
    old = cell_delete(principal=SRE, cell=fresh(cell), confirm="cc")
    new = cell_create(principal=SRE, name="cc")
    rows.a_package(new, tenant, digest=digests[0])
    now = timezone.now()
    assert cells_to_sweep(now=now + 8 * DAY) == [old, new]
    monkeypatch.setattr("scheduling.packages.sweep.ORPHAN_S", -1.0)
    assert packages_sweep(old) == 1
    assert [blob.digest for blob in package_store().listing("cc")] == digests[:1]
    assert [package.cell for package in Package.objects.all()] == [new]
    assert cells_to_sweep(now=now + 8 * DAY) == [new]


def test_borgctl_deletes_a_cell(cell, shared_portal, tmp_path) -> None:
    cli = cli_world.of(tmp_path, shared_portal, "root", sre=True)
    rows.a_machine(cell)
    refused, document = cli.run("cell", "delete", "cc"), cli.run("cell", "delete", "cc", "--yes", "cc", "--json")
    assert refused.returncode == document.returncode == 1
    assert "machines      1 up, 0 draining, 0 down" in refused.stdout
    assert "the cell has 1 machine in state up or draining" in refused.stderr
    rows.machine_down(Machine.objects.get())
    assert "type its name" in cli.run("cell", "delete", "cc", given="dd\n").stderr
    assert fresh(cell).deleted_at is None
    assert "Cell cc would be deleted." in cli.out("cell", "delete", "cc", "--dry-run")
    assert f"--cell cc.deleted-{cell.id}" in cli.out("cell", "delete", "cc", "--yes", "cc")
    assert f"cc.deleted-{cell.id}" in cli.out("cells", "--deleted")
    assert cli.out("machines", "--cell", f"cc.deleted-{cell.id}", "--state", "removed").startswith("MACHINE")


def test_the_console_deletes_a_cell_after_a_preview() -> None:
    here = portal_world.make()
    sre, path = portal_world.signed_in("sre"), f"/admin/scheduling/cell/{here.cell.pk}/delete-cell/"
    blocked = sre.get(path).text
    assert "the cell has 1 live job" in blocked
    assert 'name="confirm"' not in blocked
    assert "cannot be deleted" in sre.post(path, {"confirm": "cc"}).text
    emptied(here.cell)
    shown = sre.get(path)
    assert "ended jobs: 1" in shown.text
    assert "is not the name of the cell" in sre.post(path, {"confirm": "dd"}).text
    assert portal_world.signed_in("owner").post(path, {"confirm": "cc"}).status_code in (302, 403)
    assert fresh(here.cell).deleted_at is None
    assert sre.post(path, {"confirm": "cc"}).status_code == 302
    assert f"cc.deleted-{here.cell.pk}" in sre.get("/admin/scheduling/cell/").text
    assert sre.get(path).status_code == 302, "it is already deleted"
    assert "No process runs this scheduler" not in sre.get(path.replace("delete-cell", "change")).text
    assert "when its name was cc" in sre.get(f"/cells/cc.deleted-{here.cell.pk}/").text
    assert Event.objects.latest("revision", "seq").kind == "cell.deleted"
