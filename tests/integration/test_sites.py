"""Tests of sites and clusters: changes by SREs, sums of their machines, tasks and resources, and their migration."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import redis
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from quota.models import Record
from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Principal, system
from quota.vocabulary.resources import NAMES
from scheduling.cells import sites
from scheduling.cells.cells import cell_create
from scheduling.cells.deletion import cell_delete
from scheduling.cells.rollups import site_rollups
from scheduling.journal import wakeups
from scheduling.journal.sql import execute, query
from scheduling.models import Cell, Cluster, Event, Machine, Site
from scheduling.usage import utilisation
from tests.integration import cli_world, portal_world, rows, world
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
SRE = system("test")
migration = importlib.import_module("scheduling.migrations.0045_sites_and_clusters")


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
    """Return the kind and the data of each record about a site, a cluster or a cell."""
    found = Record.objects.filter(kind__regex=r"^(site|cluster|cell)\.").order_by("revision")
    return [(record.kind, record.data) for record in found]


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


# --- sums


@pytest.fixture
def places(zurich, forget_measurements):
    """Create cells prod and test in cluster zrh-1, cell far in cluster dub-1 without a site, and cell cc without a
    cluster. Cell cc has the machine and the job of `portal_world`; far is the only cell without measured amounts.
    """
    made = portal_world.make()
    cells = {
        name: cell_create(principal=SRE, name=name, cluster=cluster, site=site)
        for name, cluster, site in (("prod", "zrh-1", "zurich"), ("test", "zrh-1", "zurich"), ("far", "dub-1", ""))
    }
    cells["cc"] = made.cell
    for name, number in (("prod", 3), ("test", 1)):
        for index in range(number):
            rows.a_machine(cells[name], f"{name}-{index}")
    Machine.objects.filter(hostname="prod-2").update(state="down")
    measured(cells["prod"], cpu=3000, used=1000, capacity=8000)
    measured(cells["test"], cpu=500, used=100, capacity=1000)
    measured(cells["cc"], cpu=100, used=40, capacity=64000)
    return cells


def test_sums_add_up_per_cell_cluster_and_site(places) -> None:
    found = site_rollups(SRE)
    zurich, nowhere = found
    assert (zurich.site.name, nowhere.site) == ("zurich", None)
    assert [(one.cluster.name, [cell.cell.name for cell in one.cells]) for one in zurich.clusters] == [
        ("zrh-1", ["prod", "test"])
    ]
    assert [str(one.cluster) for one in nowhere.clusters] == ["dub-1", "None"]
    both = zurich.figures
    assert (both.cells, both.measured, both.counts["machines_up"], both.counts["machines_down"]) == (2, 2, 3, 1)
    assert [amounts["cpu"] for amounts in (both.capacity, both.allocated, both.usage)] == [9000, 3500, 1100]
    assert both.capacity["ram"] == 900
    others = nowhere.figures
    assert (others.cells, others.measured, others.allocated["cpu"], others.counts["tasks_pending"]) == (2, 1, 100, 2)


def test_a_cell_whose_master_is_silent_is_marked(places) -> None:
    (far,) = site_rollups(SRE)[1].clusters[0].cells
    assert (far.measured_at, far.figures.capacity, far.figures.counts["machines_up"]) == (None, {}, 0)
    assert site_rollups(SRE)[0].clusters[0].cells[0].measured_at.year == 2027


def test_without_redis_counts_are_shown_and_amounts_are_not(places, monkeypatch) -> None:
    with monkeypatch.context() as away:
        away.setattr(wakeups, "_client", redis.Redis(port=1, retry=None))
        (zurich, _) = site_rollups(SRE)
    assert (zurich.figures.measured, zurich.figures.counts["machines_up"], zurich.figures.capacity) == (0, 3, {})


def test_the_number_of_queries_does_not_grow_with_rows(places) -> None:
    with CaptureQueriesContext(connection) as few:
        site_rollups(SRE)
    for number in range(6):
        cell = cell_create(principal=SRE, name=f"c{number}", cluster=f"k{number}", site=f"s{number}")
        rows.a_machine(cell, f"m{number}")
    with CaptureQueriesContext(connection) as many:
        assert len(site_rollups(SRE)) == 8
    assert len(few) == len(many) == 5


def test_study_cells_and_deleted_cells_are_not_counted(places) -> None:
    Cell.objects.create(name="copy", study_of={"cell": "prod"})
    cell_delete(principal=SRE, cell=places["far"], confirm="far")
    assert sum(site.figures.cells for site in site_rollups(SRE)) == 3


def test_a_token_of_one_cell_shows_only_its_site(places) -> None:
    bound = Principal(name="ann", cell="prod")
    (zurich,) = site_rollups(bound)
    assert [[cell.cell.name for cell in one.cells] for one in zurich.clusters] == [["prod"]]
    assert [one.site for one in site_rollups(Principal(name="ann", cell="cc"))] == [None]


def test_rest_nests_cells_in_clusters_in_sites(places, sre) -> None:
    listed = sre.get("/api/v1/sites/").json()
    assert [site["name"] for site in listed] == ["zurich", ""]
    assert listed[0]["location"] == "Zürich, Hardturm"
    (cluster,) = listed[0]["clusters"]
    prod, _ = cluster["cells"]
    assert (cluster["name"], prod["name"], prod["measured_at"]) == ("zrh-1", "prod", "2027-01-15T08:00:00Z")
    assert prod["figures"]["machines"] == {"up": 2, "draining": 0, "down": 1}
    assert prod["figures"]["usage"]["cpu"] == 1000
    assert listed[1]["clusters"][0]["cells"][0]["measured_at"] is None
    assert sre.get("/api/v1/sites/zurich/").json() == listed[0]
    missing = sre.get("/api/v1/sites/bern/")
    assert (missing.status_code, "give one of zurich" in missing.json()["detail"]) == (404, True)


# --- pages


def test_the_page_of_cells_groups_them_by_site_and_cluster(places) -> None:
    page = signed_in("viewer").get("/cells/").content.decode()
    order = [
        page.index(text)
        for text in ("</span> zurich", "</span> zrh-1", "/cells/prod/", "No site recorded", "/cells/far/")
    ]
    assert order == sorted(order)
    assert "not measured" in page
    assert "1 cell not measured" in page


def test_without_sites_the_page_of_cells_is_a_plain_list(db) -> None:
    portal_world.make()
    page = signed_in("viewer").get("/cells/").content.decode()
    assert "/cells/cc/" in page
    assert "No site recorded" not in page


def test_the_console_shows_changes_and_deletes_sites_and_clusters(places) -> None:
    sre = signed_in("sre")
    page = sre.get(reverse("admin:sites")).content.decode()
    zurich, cluster = Site.objects.get(), Cluster.objects.get(name="zrh-1")
    assert reverse("admin:scheduling_cluster_change", args=[cluster.pk]) in page
    added = sre.post(reverse("admin:scheduling_site_add"), {"name": "bern", "description": "", "location": "Bern"})
    assert (added.status_code, Site.objects.get(name="bern").location) == (302, "Bern")
    path = reverse("admin:scheduling_cluster_change", args=[cluster.pk])
    sre.post(path, {"site": Site.objects.get(name="bern").pk, "description": "Row 3"})
    cluster.refresh_from_db()
    assert (cluster.site.name, cluster.description) == ("bern", "Row 3")
    refused = sre.post(reverse("admin:scheduling_cluster_delete", args=[cluster.pk]), {"post": "yes"}, follow=True)
    assert "cannot be deleted, because it has 2 cells (prod, test)" in refused.content.decode()
    sre.post(reverse("admin:scheduling_site_delete", args=[zurich.pk]), {"post": "yes"})
    assert not Site.objects.filter(name="zurich").exists()
    prod = places["prod"]
    dublin = Cluster.objects.get(name="dub-1")
    form = reverse("admin:scheduling_cell_change", args=[prod.pk])
    rejected = sre.post(form, {"cluster": dublin.pk, "settings": '{"scorer": "luck"}'})
    assert "must be hybrid" in rejected.content.decode()
    assert Cell.objects.get(pk=prod.pk).cluster == cluster
    assert sre.post(form, {"cluster": dublin.pk, "settings": "{}"}).status_code == 302
    assert Cell.objects.get(pk=prod.pk).cluster == dublin


# --- texts of the release before


def test_texts_of_cells_become_rows_and_stay(db) -> None:
    for number, (cluster, site) in enumerate([("c1", "zurich"), ("", "Zürich DC 4"), ("", "")]):
        cell = Cell.objects.create(name=f"cell-{number}")
        execute("UPDATE scheduling_cell SET cluster = %s, site = %s WHERE id = %s", [cluster, site, cell.id])
    migration.fill(apps, None)
    cells = Cell.objects.order_by("name")
    assert [(cell.cluster_name, cell.site_name) for cell in cells] == [
        ("c1", "zurich"),
        ("zurich-dc-4", "zurich-dc-4"),
        ("", ""),
    ]
    assert Site.objects.get(name="zurich-dc-4").description == "Zürich DC 4"
    assert query("SELECT site FROM scheduling_cell WHERE name = 'cell-1'") == [("Zürich DC 4",)]


@pytest.mark.parametrize(
    ("texts", "sites", "clusters", "cells"),
    [
        ([("c1", "zurich"), ("c1", "zurich")], ["zurich"], {"c1": "zurich"}, ["c1", "c1"]),
        ([("c1", "zurich"), ("c1", "")], ["zurich"], {"c1": "zurich"}, ["c1", "c1"]),
        ([("c1", "")], [], {"c1": ""}, ["c1"]),
        ([("", "zurich"), ("", "zurich")], ["zurich"], {"zurich": "zurich"}, ["zurich", "zurich"]),
        ([("", "zurich"), ("", "bern")], ["bern", "zurich"], {"zurich": "zurich", "bern": "bern"}, ["zurich", "bern"]),
        (
            [("c1", "zurich"), ("c1", "dublin"), ("c1", "")],
            ["dublin", "zurich"],
            {"c1-zurich": "zurich", "c1-dublin": "dublin", "c1": ""},
            ["c1-zurich", "c1-dublin", "c1"],
        ),
        ([("", "c1"), ("c1", "zurich")], ["c1", "zurich"], {"c1": "zurich", "c1-2": "c1"}, ["c1-2", "c1"]),
        ([("", "")], [], {}, [None]),
    ],
)
def test_texts_become_sites_and_clusters(texts: Any, sites: Any, clusters: Any, cells: Any) -> None:
    found = migration.mapped((number, *text) for number, text in enumerate(texts))
    assert sorted(found.sites) == sites
    assert {name: site for name, (_, site) in found.clusters.items()} == clusters
    assert [found.cells.get(number) for number in range(len(texts))] == cells


def test_texts_that_are_not_labels_get_similar_names_and_stay_as_descriptions() -> None:
    texts = ["Zürich DC 4", "zurich-dc-4", "Zurich DC 4", "東京", "4", "x" * 80]
    found = migration.mapped((number, "", text) for number, text in enumerate(texts))
    assert found.sites == {
        "zurich-dc-4": "",
        "zurich-dc-4-2": "Zurich DC 4",
        "zurich-dc-4-3": "Zürich DC 4",
        "site-4": "4",
        "site": "東京",
        "x" * 63: "x" * 80,
    }
    assert len(set(found.cells.values())) == len(texts)
