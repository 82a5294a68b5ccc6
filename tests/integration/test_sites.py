"""Tests of sites and clusters: changes by SREs, the sums of their machines, tasks and resources, and their migration."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from quota.models import Record
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import Principal, system
from quota.vocabulary.resources import NAMES
from scheduling.cells import sites
from scheduling.cells.cells import cell_create
from scheduling.cells.deletion import cell_delete
from scheduling.cells.rollups import Figures, site_rollups, total
from scheduling.journal import wakeups
from scheduling.models import Cell, Cluster, Event, Site
from scheduling.usage import utilisation
from tests.integration import cli_world, portal_world, rows, world
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
SRE = system("test")
ANN = Principal(name="ann")
GIB = 2**30


@pytest.fixture
def zurich(db) -> Site:
    return sites.site_create(principal=SRE, name="zurich", description="Two halls", location="Zürich, Hardturm")


@pytest.fixture
def sre(db):
    return world.bearer(world.a_user("sre", sre=True))


def measured(cell: Cell, *, cpu: int = 0, used: int = 0, capacity: int = 0) -> None:
    """Publish figures of a cell as its master does: limits, usage and capacity of CPU, and a tenth of them as RAM."""
    amounts = {
        name: {"cpu": value, "ram": value // 10}
        for name, value in (("capacity", capacity), ("limit", cpu), ("reservation", cpu), ("usage", used))
    }
    whole = {what: dict.fromkeys(NAMES, 0) | values for what, values in amounts.items()}
    figures = utilisation.UtilisationFigures(at=1_800_000_000.0, setting="on", running=1, measured=1, short=0, **whole)
    utilisation.publish(cell.id, figures)


@pytest.fixture
def forget_measurements(db):
    yield
    for cell_id in Cell.objects.values_list("id", flat=True):
        wakeups.client().delete(utilisation._key(cell_id))


def records() -> list[tuple[str, dict]]:
    return [(record.kind, record.data) for record in Record.objects.order_by("revision")]


# --- changes


def test_sites_and_clusters_are_created_changed_moved_and_deleted(sre) -> None:
    made = sre.post("/api/v1/sites/", {"name": "zurich", "location": "Hardturm"}, "application/json")
    assert (made.status_code, made.json()["name"], made.json()["location"]) == (201, "zurich", "Hardturm")
    sre.post("/api/v1/sites/", {"name": "dublin"}, "application/json")
    made = sre.post("/api/v1/clusters/", {"name": "zrh-1", "site": "zurich"}, "application/json")
    assert (made.status_code, made.json()["site"]) == (201, "zurich")
    changed = sre.patch("/api/v1/sites/zurich/", {"description": "Two halls"}, "application/json").json()
    assert (changed["description"], changed["location"]) == ("Two halls", "Hardturm")
    moved = sre.patch("/api/v1/clusters/zrh-1/", {"site": "dublin"}, "application/json")
    assert (moved.status_code, moved.json()["site"]) == (200, "dublin")
    assert sre.get("/api/v1/clusters/").json()["results"][0]["site"] == "dublin"
    assert sre.delete("/api/v1/clusters/zrh-1/").status_code == 204
    assert sre.delete("/api/v1/sites/zurich/").status_code == 204
    assert [kind for kind, _ in records()] == [
        *("site.created", "site.created", "cluster.created", "site.changed", "cluster.moved"),
        *("cluster.deleted", "site.deleted"),
    ]
    assert records()[4][1] == {"cluster": "zrh-1", "site": "dublin", "before": "zurich"}


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("sites/", {"name": "Zürich"}, 422, "name"),
        ("sites/", {"name": "zurich"}, 409, "name"),
        ("sites/", {"name": "z", "location": "x" * 201}, 422, "location"),
        ("clusters/", {"name": "1"}, 422, "name"),
        ("clusters/", {"name": "z", "site": "bern"}, 422, "site"),
        ("cells/", {"name": "z", "cluster": "Big One"}, 422, "cluster"),
        ("cells/", {"name": "z", "site": "Zürich"}, 422, "site"),
    ],
)
def test_wrong_values_are_rejected_and_name_the_field(sre, zurich, path, body, status, field) -> None:
    before = len(records())
    answer = sre.post(f"/api/v1/{path}", body, "application/json")
    assert (answer.status_code, list(answer.json()["fields"])) == (status, [field])
    assert ([*Site.objects.all()], Cluster.objects.count(), Cell.objects.count()) == ([zurich], 0, 0)
    assert len(records()) == before


def test_a_change_to_the_present_values_writes_no_record(zurich) -> None:
    before = len(records())
    cluster = sites.cluster_create(principal=SRE, name="zrh-1", site="zurich")
    sites.site_change(principal=SRE, site=zurich, changes={"location": zurich.location})
    sites.cluster_change(principal=SRE, cluster=cluster, changes={"site": "zurich", "description": ""})
    assert len(records()) == before + 1


def test_what_is_referred_to_is_not_deleted(zurich) -> None:
    cluster = sites.cluster_create(principal=SRE, name="zrh-1", site="zurich")
    cell = cell_create(principal=SRE, name="prod", cluster="zrh-1")
    with pytest.raises(Conflict, match=r"site zurich .* 1 cluster \(zrh-1\); move them with .* or delete") as problem:
        sites.site_delete(principal=SRE, site=zurich)
    assert list(problem.value.fields) == ["clusters"]
    with pytest.raises(Conflict, match=r"cluster zrh-1 .* 1 cell \(prod\); move them with `borgctl cell move") as found:
        sites.cluster_delete(principal=SRE, cluster=cluster)
    assert list(found.value.fields) == ["cells"]
    gone = cell_delete(principal=SRE, cell=cell, confirm="prod")
    assert gone.cluster == cluster
    sites.cluster_delete(principal=SRE, cluster=cluster)
    sites.site_delete(principal=SRE, site=zurich)
    gone.refresh_from_db()
    assert (gone.cluster, gone.site_name, Site.objects.count()) == (None, "", 0)


def test_a_cell_moves_to_another_cluster_and_its_journal_does_not_change(sre, zurich) -> None:
    cell = cell_create(principal=SRE, name="prod", cluster="zrh-1", site="zurich")
    sites.cluster_create(principal=SRE, name="zrh-2", site="zurich")
    events = Event.objects.count()
    moved = sre.patch("/api/v1/cells/prod/", {"cluster": "zrh-2"}, "application/json")
    assert (moved.status_code, moved.json()["cluster"], moved.json()["site"]) == (200, "zrh-2", "zurich")
    assert records()[-1] == ("cell.moved", {"cell": "prod", "cluster": "zrh-2", "before": "zrh-1"})
    assert (Event.objects.count(), Cell.objects.get().revision) == (events, cell.revision)
    unknown = sre.patch("/api/v1/cells/prod/", {"cluster": "zrh-3"}, "application/json")
    assert (unknown.status_code, list(unknown.json()["fields"])) == (422, ["cluster"])
    assert "borgctl cluster create zrh-3" in unknown.json()["detail"]
    assert "zrh-1, zrh-2" in unknown.json()["detail"]
    sre.patch("/api/v1/cells/prod/?dry_run=1", {"cluster": ""}, "application/json")
    assert Cell.objects.get().cluster_name == "zrh-2"
    assert sre.patch("/api/v1/cells/prod/", {"cluster": ""}, "application/json").json()["site"] == ""


def test_study_cells_and_deleted_cells_do_not_move(zurich) -> None:
    sites.cluster_create(principal=SRE, name="zrh-1", site="zurich")
    study = Cell.objects.create(name="copy", study_of={"cell": "prod"})
    gone = cell_delete(principal=SRE, cell=cell_create(principal=SRE, name="prod"), confirm="prod")
    for cell, what in ((study, "a study cell"), (gone, "a deleted cell")):
        with pytest.raises(Conflict, match=what):
            sites.cell_move(principal=SRE, cell=cell, cluster="zrh-1")


def test_a_new_cell_may_name_a_cluster_and_a_site_that_do_not_exist(db) -> None:
    """Before there were sites and clusters, both were texts of a cell, and clients may still send any names."""
    both = cell_create(principal=SRE, name="prod", cluster="zrh-1", site="zurich")
    test = cell_create(principal=SRE, name="test", cluster="zrh-1")
    only_site = cell_create(principal=SRE, name="edge", site="zurich")
    only_cluster = cell_create(principal=SRE, name="far", cluster="dub-1")
    neither = cell_create(principal=SRE, name="dev")
    placed = [(cell.cluster_name, cell.site_name) for cell in (both, test, only_site, only_cluster, neither)]
    assert placed == [("zrh-1", "zurich"), ("zrh-1", "zurich"), ("zurich", "zurich"), ("dub-1", ""), ("", "")]
    assert "not recorded" in only_site.cluster.description
    with pytest.raises(Conflict, match="cluster zrh-1 is at site zurich, not at site dublin"):
        cell_create(principal=SRE, name="other", cluster="zrh-1", site="dublin")
    assert not Site.objects.filter(name="dublin").exists()


@pytest.mark.django_db(transaction=True)
def test_borgctl_manages_sites_and_clusters(tmp_path, shared_portal) -> None:
    rows.a_cell()
    sre = cli_world.of(tmp_path, shared_portal, "root", sre=True)
    assert "Site zurich would be created." in sre.out("site", "create", "zurich", "--dry-run")
    sre.out("site", "create", "zurich", "--location", "Hardturm")
    sre.out("cluster", "create", "zrh-1", "--site", "zurich")
    assert sre.out("cell", "move", "cc", "--cluster", "zrh-1").strip() == "Cell cc is now in cluster zrh-1."
    assert "Site zurich is changed." in sre.out("site", "set", "zurich", "--description", "Two halls")
    table = [line.split() for line in sre.out("site", "list").splitlines()]
    assert [line[0] for line in table] == ["SITE", "zurich"]
    shown = sre.out("site", "show", "zurich")
    assert "Two halls" in shown
    assert [line.split()[:2] for line in shown.splitlines()[-2:]] == [["zrh-1", "cc"], ["zrh-1", "all"]]
    assert "1 cluster (zrh-1)" in sre.failing("site", "delete", "zurich")[0]
    assert "zrh-1" in sre.out("cluster", "list")
    sre.out("cell", "move", "cc", "--cluster", "")
    assert "Cluster zrh-1 is deleted." in sre.out("cluster", "delete", "zrh-1")
    assert "Site zurich is deleted." in sre.out("site", "delete", "zurich")
