"""Tests of the search: what it finds, that it returns only what the user may see, and how many queries it makes."""

from __future__ import annotations

import copy
import json

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota.models import CellCapacity, Order
from scheduling.models import Cell, ConfigFile, CronJob, Job, Machine, Pool, Workflow
from tests.integration import rows
from tests.integration.portal_world import signed_in
from tests.integration.test_console_market import an_order

pytestmark = pytest.mark.django_db
NAMES = (
    "jfoo.ubar.cc.borg.internal",
    "0.jfoo.ubar.cc.borg.internal",
    "/bns/cc/ubar/jfoo",
    "web.service.ubar.cc.borg.internal",
)
_NAMED = ("Services", "Workflows", "Cron jobs", "Config files", "Machine pools")
JSON = {"headers": {"Accept": "application/json"}}


@pytest.fixture
def world(kept_world):
    CellCapacity.objects.update_or_create(cell="cc", defaults={"capacity": list(rows.LARGE), "revision": 1})
    return copy.deepcopy(kept_world)


def found(client: Client, text: str) -> dict[str, list[str]]:
    """Return the links of the results for a text, by the title of their group."""
    answer = client.get("/find/", {"q": text}, **JSON)
    assert answer.status_code == 200
    return {group["title"]: [one["link"] for one in group["results"]] for group in answer.json()["groups"]}


def test_it_finds_jobs_tasks_machines_cells_tenants_orders_and_names(world) -> None:
    sre, uid = signed_in("sre"), world.job.uid
    job = f"/jobs/cc/ubar/jfoo/?uid={uid}"
    assert found(sre, "foo")["Jobs and tasks"] == [job]
    assert found(sre, "ubar/jf")["Jobs and tasks"] == [job]
    assert found(sre, "jfoo/2")["Jobs and tasks"] == [f"/jobs/cc/ubar/jfoo/2/?uid={uid}"]
    assert "Jobs and tasks" not in found(sre, "jfoo/3")
    assert found(sre, "M1")["Machines"] == ["/cells/cc/machines/m1/"]
    assert found(sre, "127.0.0.1")["Machines"] == ["/cells/cc/machines/m1/"]
    assert found(sre, "cc/m1")["Machines"] == ["/cells/cc/machines/m1/"]
    assert "Machines" not in found(sre, "dd/m1")
    assert found(sre, "cc")["Cells"] == ["/cells/cc/"]
    assert found(sre, "uba")["Tenants"] == ["/tenants/ubar/"]
    order = an_order(world.tenant)
    assert found(sre, f"#{order.pk}")["Orders"] == [f"/orders/{order.pk}/"]
    assert found(sre, "jfoo.ubar.cc.borg.internal")["Names"] == ["/jobs/cc/ubar/jfoo/"]
    assert found(sre, "m1.machine.cc.borg.internal")["Names"] == ["/cells/cc/machines/m1/"]


def test_a_tenants_user_finds_nothing_of_other_tenants_and_nothing_of_the_console(world) -> None:
    order = an_order(world.tenant)
    texts = ("jfoo", "ubar", "ubar/jfoo", "jfoo/0", "cc/ubar/jfoo/0", str(order.pk), *NAMES)
    Job.objects.filter(pk=world.job.pk).update(labels={"service": "web"})
    assert all(found(signed_in("viewer"), name)["Names"] for name in NAMES)
    stranger = signed_in("stranger")
    for text in texts:
        groups = found(stranger, text)
        assert not groups.keys() & {"Jobs and tasks", "Tenants", "Orders", "Names"}, text
        assert "ubar" not in json.dumps(groups), text
    assert Order.objects.filter(pk=order.pk).exists()
    viewer = signed_in("viewer")
    assert found(viewer, "jfoo")["Jobs and tasks"]
    assert found(viewer, "m1")["Machines"]  # every user sees machines
    assert "Tenants" not in found(viewer, "other")
    for text in ("", "drain", "brakes", "token", "journal", "order"):
        links = [link for group in found(viewer, text).values() for link in group]
        assert not [link for link in links if link.startswith("/admin/")], text
    assert "/admin/scheduling/brake/" in found(signed_in("sre"), "brakes")["Pages and actions"]
    assert Client().get("/find/", {"q": "jfoo"}, **JSON).status_code == 302


def test_services_workflows_cron_jobs_config_files_and_pools_are_found_by_a_part_of_their_name(world) -> None:
    now, cell, tenant = timezone.now(), world.cell, world.tenant
    common = {"cell": cell, "tenant": tenant, "owner_name": "ann", "created_at": now, "changed_at": now}
    CronJob.objects.create(
        **common, name="web-report", schedule="* * * * *", time_zone="UTC", overlap="skip", catch_up_s=0, keep_runs=1,
        template={}, tasks=1,
    )  # fmt: skip
    for ended_at in (now, None):  # a name may be used again
        Workflow.objects.create(
            **common, name="web-index", parallel=1, keep_s=1, nodes=1, nodes_left=1, ended_at=ended_at
        )
    ConfigFile.objects.create(tenant=tenant, name="my-web", created_by="ann", created_at=now)
    ConfigFile.objects.create(tenant=tenant, name="old-web", created_by="ann", created_at=now, deleted_at=now)
    for name, tenants in (("webpool", ["ubar"]), ("web-other", ["third"])):
        Pool.objects.create(cell=cell, name=name, tenants=tenants, changed_by="sre", changed_at=now)
    Job.objects.filter(pk=world.job.pk).update(labels={"service": "the-web"})
    groups = found(signed_in("viewer"), "web")
    assert {title: groups.get(title) for title in _NAMED} == {
        "Services": ["/services/cc/ubar/the-web/"],
        "Workflows": ["/workflows/cc/ubar/web-index/"],
        "Cron jobs": ["/cron/cc/ubar/web-report/"],
        "Config files": ["/tenants/ubar/configs/my-web/"],
        "Machine pools": ["/cells/cc/"],
    }
    assert found(signed_in("viewer"), "ubar/web-i")["Workflows"] == ["/workflows/cc/ubar/web-index/"]
    assert not found(signed_in("stranger"), "web").keys() & set(_NAMED)
    pools = found(signed_in("sre"), "web")["Machine pools"]
    assert pools == [f"/admin/scheduling/pool/?q={name}" for name in ("webpool", "web-other")]
    assert not found(signed_in("sre"), "dd/ubar/web").keys() & set(_NAMED)


def test_dead_jobs_removed_machines_and_study_cells_are_left_out(world) -> None:
    sre = signed_in("sre")
    Machine.objects.update(state="removed")
    assert "Machines" not in found(sre, "m1")
    study = Cell.objects.create(name="copy", study_of={"cell": "cc", "revision": 1})
    Job.objects.filter(pk=world.job.pk).update(cell=study)
    assert "Jobs and tasks" not in found(sre, "jfoo")
    Machine.objects.create(
        cell=study, hostname="copied", address="127.0.0.1", capacity=list(rows.LARGE), secret_digest="1" * 64
    )
    assert "Machines" not in found(sre, "copied")
    assert "Cells" not in found(sre, "copy")


def test_it_finds_sections_of_the_documentation(world, settings, tmp_path) -> None:
    viewer = signed_in("viewer")
    settings.WHITENOISE_ROOT = tmp_path
    assert "Documentation" not in found(viewer, "brake")
    index = tmp_path / "docs" / "search" / "search_index.json"
    index.parent.mkdir(parents=True)
    sections = [
        {"title": "<code>BorgBrakeHeld</code> &amp; more", "location": "guides/alarms/#borgbrakeheld", "text": "x"}
    ]
    index.write_text(json.dumps({"docs": sections}))
    assert found(viewer, "brakeheld")["Documentation"] == ["/docs/guides/alarms/#borgbrakeheld"]
    assert "Documentation" not in found(viewer, "code")
    assert "BorgBrakeHeld &amp; more" in viewer.get("/find/", {"q": "brakeheld"}).text


def test_the_page_works_without_scripts(world) -> None:
    viewer = signed_in("viewer")
    page = viewer.get("/find/", {"q": "jfoo"}).text
    assert f'<a href="/jobs/cc/ubar/jfoo/?uid={world.job.uid}">ubar/jfoo</a>' in page
    assert "Nothing that you may see matches." in viewer.get("/find/", {"q": "<zzz>"}).text.split("<main")[1]
    assert "&lt;zzz&gt;" in viewer.get("/find/", {"q": "<zzz>"}).text
    for text in ("'", "%", "_", "/", "9" * 300, "ÄÖ", "a/b/c/d", "::1", "#", "..."):
        assert viewer.get("/find/", {"q": text}).status_code == 200, text
    assert found(viewer, "%") == {}  # not a pattern of LIKE


def test_its_queries_do_not_depend_on_the_number_of_rows(world) -> None:
    sre = signed_in("sre")

    def queries(text: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            found(sre, text)
        return len(captured)

    texts = ("j", "m", "u", "j/0", "1")
    found(sre, "j")  # fill the caches of the process
    before = [queries(text) for text in texts]
    for number in range(3):
        rows.a_machine(world.cell, f"m{number + 10}")
        rows.a_job(world.cell, rows.a_tenant(f"u{number}"), f"jbar{number}")
        Cell.objects.create(name=f"mm{number}")
    assert [queries(text) for text in texts] == before
    assert max(before) <= 12
