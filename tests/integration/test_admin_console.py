"""Tests of the SRE console: only staff may use it, and nothing that breaks an invariant can be edited.

The number of queries of a list does not depend on its length.
"""

from __future__ import annotations

import copy
import datetime as dt
import re

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from portal.admin_site import site
from quota.admission import published_capacity
from quota.models import Capability, Membership, PriceList, PriorityBand, Quota, Record, Tenant, Token
from scheduling.brakes.stored_brakes import stops_pass
from scheduling.journal import journal, wakeups
from scheduling.master import lease, pass_log
from scheduling.models import (
    Brake,
    Cell,
    Cluster,
    CrashedPair,
    Departure,
    Drain,
    Event,
    Job,
    JoinToken,
    Machine,
    MaintenanceWindow,
    Pool,
    Repacking,
    RepackingStep,
    Site,
    Task,
)
from tests.integration import portal_world, rows
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
PAGES = sorted(f"{model._meta.app_label}_{model._meta.model_name}" for model in site._registry)
CHANGED_BY_SERVICES = {
    "quota_tenant",
    "quota_membership",
    "quota_capability",
    "quota_priorityband",
    "quota_pricelist",
    "quota_quota",
    "scheduling_cell",
    "scheduling_site",
    "scheduling_cluster",
    "scheduling_maintenancewindow",
    "scheduling_pool",
    "scheduling_repacking",
    "quota_market",
    "quota_budget",
    "quota_approvalrule",
}
OURS = [page for page in PAGES if page.startswith(("quota_", "scheduling_"))]


@pytest.fixture
def world(kept_world, tmp_path, settings):
    settings.BORG_AUTHORITY = str(tmp_path / "authority")
    return copy.deepcopy(kept_world)


@pytest.fixture
def sre(world) -> Client:
    return signed_in("sre")


def listed(page: str) -> str:
    return reverse(f"admin:{page}_changelist")


def test_only_staff_come_in(sre) -> None:
    nobody, others = Client(), [signed_in("owner"), signed_in("stranger")]
    for page in ("index", *(f"{page}_changelist" for page in PAGES)):
        path = reverse(f"admin:{page}")
        assert nobody.get(path, follow=True).redirect_chain[-1][0].startswith("/accounts/login/"), page
        for client in others:
            answer = client.get(path, follow=True)
            assert answer.status_code == 403, page
            assert "jfoo" not in answer.text
        assert sre.get(path).status_code == 200, page


def test_staff_need_no_permissions_of_djangos_but_make_no_accounts(world) -> None:
    portal_world.person("junior", is_staff=True)
    junior = signed_in("junior")
    assert junior.get(listed("scheduling_machine")).status_code == 200
    assert junior.get(listed("auth_user")).status_code == 403
    assert "/admin/auth/user/" not in junior.get("/admin/").text


@pytest.mark.parametrize("page", [page for page in OURS if page not in CHANGED_BY_SERVICES])
def test_facts_can_not_be_edited(sre, page) -> None:
    assert sre.get(reverse(f"admin:{page}_add")).status_code == 403
    model = next(m for m in site._registry if f"{m._meta.app_label}_{m._meta.model_name}" == page)
    admin = site._registry[model]
    row = model.objects.first()
    if row is None or page == "scheduling_event":
        return
    path = reverse(f"admin:{page}_change", args=[row.pk])
    shown = sre.get(path)
    assert shown.status_code == 200
    assert 'name="_save"' not in shown.text
    assert sre.post(path, {"state": "dead", "revision": 0}).status_code == 403
    assert sre.post(reverse(f"admin:{page}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    assert "digest" not in shown.text or model not in (Token, JoinToken)
    assert admin.get_actions(shown.wsgi_request).get("delete_selected") is None


def test_lists_cost_the_same_whatever_there_is_to_show(sre, world) -> None:
    furnish(world, "a")
    for page in OURS:
        sre.get(listed(page))  # what a process reads only once
    before = {page: queries(sre, listed(page)) for page in OURS}
    for name in ("b", "c", "d"):
        furnish(world, name)
    after = {page: queries(sre, listed(page)) for page in OURS}
    assert {page: (before[page], number) for page, number in after.items() if number > before[page]} == {}
    assert {page: number for page, number in before.items() if number > 20} == {}


def furnish(world, name: str) -> None:
    """Create one more row of each kind that the console lists."""
    tenant = rows.a_tenant(f"team-{name}")
    rows.grant(tenant, world.cell, "production")
    user = portal_world.person(f"user-{name}")
    Membership.objects.create(tenant=tenant, user=user, role="viewer")
    Capability.objects.create(user=user, kind="shell", reason="why", granted_by="me")
    Token.objects.create(user=user, tenant=tenant, name=name, key=name, digest="x", scopes=["read"])
    machine = rows.a_machine(world.cell, f"node-{name}")
    job = rows.a_job(world.cell, tenant, f"job-{name}")
    portal_world.place(job, 0, machine)
    task = Task.objects.get(job=job, index=0)
    Departure.objects.create(task=task, incarnation=1, machine=machine, cause="kill", since=timezone.now())
    CrashedPair.objects.create(task=task, machine=machine, at=timezone.now())
    Drain.objects.create(machine=machine, asked_by="me", began_at=timezone.now(), tasks=1)
    site = Site.objects.create(name=f"site-{name}")
    cluster = Cluster.objects.create(name=f"cluster-{name}", site=site)
    other = Cell.objects.create(name=f"cell-{name}", cluster=cluster)
    Brake.objects.create(cell=other, kind="stops", since=timezone.now(), at=timezone.now())


def queries(client: Client, path: str) -> int:
    cache.clear()
    with CaptureQueriesContext(connection) as captured:
        assert client.get(path).status_code == 200
    return len(captured)


def test_the_journal_is_never_counted_and_goes_back_to_a_revision(sre, world) -> None:
    with CaptureQueriesContext(connection) as captured:
        page = sre.get(listed("scheduling_event"))
    assert not [q["sql"] for q in captured if "COUNT(" in q["sql"] and "scheduling_event" in q["sql"]]
    assert "jfoo/0" in page.text
    assert "machine.set" in page.text
    back = sre.get(listed("scheduling_event"), {"q": "1"}).context["cl"].result_list
    assert {event.revision for event in back} == {1}
    kinds = sre.get(listed("scheduling_event"), {"kind": "task.placed", "cell_id": world.cell.id})
    assert {event.kind for event in kinds.context["cl"].result_list} == {"task.placed"}


def test_machines_are_filtered_by_platform_once_one_has_a_platform(sre, world) -> None:
    Machine.objects.update(platform="")
    rows.a_machine(world.cell, "m7")
    assert "platform=" not in sre.get(listed("scheduling_machine")).text
    Machine.objects.filter(hostname="m7").update(platform="epyc")
    page = sre.get(listed("scheduling_machine")).text
    names = re.findall(r'href="\?platform=[^"]*"[^>]*>\s*([^<]*?)\s*<', page)
    assert names == ["no platform", "epyc"]


def act(client: Client, page: str, action: str, row, **more):
    return client.post(listed(page), {"action": action, "_selected_action": row.pk, **more}, follow=True)


def test_draining_asks_why_and_goes_through_the_journal(sre, world) -> None:
    asked = act(sre, "scheduling_machine", "drain", world.machine)
    assert 'name="reason"' in asked.text
    assert Machine.objects.get().state == "up"
    assert "Enter a reason" in act(sre, "scheduling_machine", "drain", world.machine, reason=" ").text
    done = act(sre, "scheduling_machine", "drain", world.machine, reason="new disk")
    assert "Drain machines: done for 1" in done.text
    world.machine.refresh_from_db()
    assert (world.machine.state, world.machine.reason) == ("draining", "new disk")
    event = Event.objects.filter(kind="machine.state").latest("revision")
    assert (event.actor, event.data["state"]) == ("sre", "draining")
    act(sre, "scheduling_machine", "undrain", world.machine, reason="disk is in")
    world.machine.refresh_from_db()
    assert world.machine.state == "up"


def test_a_drain_has_a_deadline_and_its_page_tells_how_far_it_is(sre, world) -> None:
    given = {"reason": "new disk", "minutes": "30", "break_budgets": "on"}
    assert 'name="minutes"' in act(sre, "scheduling_machine", "drain", world.machine).text
    wrong = act(sre, "scheduling_machine", "drain", world.machine, **{**given, "minutes": ""})
    assert "break_budgets needs a deadline" in wrong.text
    assert Machine.objects.get().state == "up"
    act(sre, "scheduling_machine", "drain", world.machine, **given)
    drain = Drain.objects.get()
    assert (drain.asked_by, drain.break_budgets) == ("sre", True)
    page = sre.get(listed("scheduling_drain")).text
    assert f"{drain.tasks} of {drain.tasks}" in page
    assert f'max="{drain.tasks}" value="{drain.tasks}"' in page  # the bar shows the same number as the text: tasks left
    assert "after the deadline, tasks are evicted despite disruption budgets" in page
    act(sre, "scheduling_drain", "undrain", drain, reason="disk is in")
    assert Machine.objects.get().state == "up"


def test_a_re_packing_is_planned_first_and_its_start_shows_who_moves(sre, world) -> None:
    path = reverse("admin:scheduling_repacking_add")
    wrong = sre.post(path, {"cell": world.cell.pk, "number": 0, "job_name": "", "reason": "x"})
    assert "machines is 0" in wrong.text
    unknown = sre.post(path, {"cell": world.cell.pk, "number": 0, "job_name": "ubar/none", "reason": "x"})
    assert "write tenant/job" in unknown.text
    sre.post(path, {"cell": world.cell.pk, "number": 1, "job_name": "", "reason": "give one back"})
    row = Repacking.objects.get()
    assert (row.state, row.number, row.asked_by) == ("planning", 1, "sre")
    row.state, row.planned_at, row.moves = "planned", timezone.now(), 1
    row.jobs = [{"name": "ubar/web", "moves": 1, "spare": 2, "tasks": 3, "may": 1, "down": 0}]
    row.jobs += [{"name": f"ubar/w{n}", "moves": 0, "spare": 1, "tasks": 3, "may": 1, "down": 0} for n in range(201)]
    row.save()
    RepackingStep.objects.create(repacking=row, position=0, machine=world.machine, moves=1)
    for page in (
        sre.get(reverse("admin:scheduling_repacking_change", args=[row.pk])).text,
        act(sre, "scheduling_repacking", "start", row).text,
    ):
        assert "total: 1 tasks, and up to 203 more from spare machines" in page
        assert "1 of 3 tasks of ubar/web (1 may be down at once), 2 more from spare machines" in page
        assert "and 2 more jobs" in page
    assert Repacking.objects.get().state == "planned"
    act(sre, "scheduling_repacking", "start", row, reason="now")
    assert (Repacking.objects.get().state, Machine.objects.get().state) == ("running", "draining")
    act(sre, "scheduling_repacking", "stop", row, reason="enough")
    assert (Repacking.objects.get().state, Machine.objects.get().state) == ("stopped", "up")


def test_a_maintenance_window_is_written_changed_and_cancelled(sre, world) -> None:
    path = reverse("admin:scheduling_maintenancewindow_add")
    times = {"starts_at_0": "2099-01-01", "starts_at_1": "22:00:00", "ends_at_0": "2099-01-02", "ends_at_1": "02:00:00"}
    given = {"cell": world.cell.pk, "machines": "m1", "rack": "", "power_domain": "", "reason": "new disks", **times}
    assert "days ahead" in sre.post(path, given).text
    soon = timezone.now() + dt.timedelta(days=2)
    given |= {"starts_at_0": f"{soon:%F}", "ends_at_0": f"{soon + dt.timedelta(days=1):%F}"}
    assert "give exactly one of" in sre.post(path, given | {"rack": "r1"}).text
    sre.post(path, given)
    row = MaintenanceWindow.objects.get()
    assert (row.state, row.machines, row.starts_at.hour, row.asked_by) == ("planned", ["m1"], 22, "sre")
    page = reverse("admin:scheduling_maintenancewindow_change", args=[row.pk])
    assert "tasks have to move, from" in sre.get(page).text
    sre.post(page, given | {"reason": "new disks and fans"})
    row.refresh_from_db()
    assert (row.reason, row.changed_by) == ("new disks and fans", "sre")
    assert "new disks and fans" in sre.get(listed("scheduling_maintenancewindow")).text
    act(sre, "scheduling_maintenancewindow", "cancel", row, reason="the disks are late")
    assert "the disks are late" in sre.get(page).text


def test_a_pool_is_written_and_machines_get_attributes(sre, world) -> None:
    given = {
        "cell": world.cell.pk,
        "name": "gpu",
        "description": "",
        "selector": "tier=gold",
        "tenants": "",
        "use": "may",
    }
    path, given = reverse("admin:scheduling_pool_add"), given | {"others": "stay", "dedicated": "on"}
    assert "name at least one" in sre.post(path, given).text
    sre.post(path, given | {"tenants": "ubar"})
    row = Pool.objects.get()
    assert (row.tenants, row.dedicated, row.changed_by) == (["ubar"], True, "sre")
    machine = Machine.objects.get(hostname="m1")
    act(sre, "scheduling_machine", "set_attributes", machine, values="tier=gold", removed="", reason="new disks")
    assert Machine.objects.get(pk=machine.pk).attributes["pool"] == "gpu"
    page = reverse("admin:scheduling_pool_change", args=[row.pk])
    assert "1 machines, of which" in sre.get(page).text
    sre.post(page, given | {"tenants": "ubar", "use": "prefer"})
    row.refresh_from_db()
    assert (row.use, "gpu" in sre.get(listed("scheduling_pool")).text) == ("prefer", True)
    act(sre, "scheduling_machine", "set_attributes", machine, values="", removed="tier", reason="old disks")
    act(sre, "scheduling_machine", "assign_pool", machine, pool="gpu", reason="spare")
    assert "gpu" in sre.get(listed("scheduling_machine")).text
    act(sre, "scheduling_pool", "delete_pools", row, reason="not needed")
    assert "pool" not in Machine.objects.get(pk=machine.pk).attributes


def test_a_brake_that_holds_is_reported_on_the_first_page_and_released(sre, world) -> None:
    assert "until an SRE decides" not in sre.get("/admin/").text
    with journal.write(world.cell.id, rows.ME) as entry:
        assert not stops_pass(entry, 4_000, what="preemption")
    assert "does not stop or move 4000 tasks until an SRE decides: preemption would stop" in sre.get("/admin/").text
    brake = Brake.objects.get()
    act(sre, "scheduling_brake", "keep", brake, reason="a bug, being mended")
    assert "until an SRE decides" not in sre.get("/admin/").text
    act(sre, "scheduling_brake", "release", brake, reason="mended", minutes="5")
    brake.refresh_from_db()
    assert (brake.state, brake.decided_by, brake.detail) == ("released", "sre", "mended")


def test_what_a_service_refuses_is_reported_and_hinders_no_other(sre, world) -> None:
    answer = act(sre, "scheduling_machine", "remove", world.machine, reason="sold")
    assert "drain the machine" in answer.text
    assert Machine.objects.get().state == "up"


def test_a_job_is_killed_with_a_reason(sre, world) -> None:
    act(sre, "scheduling_job", "kill", world.job, reason="runaway")
    assert Job.objects.get().outcome == "killed"
    assert set(Task.objects.values_list("detail", flat=True)) == {"runaway"}


def test_a_join_token_is_shown_once(sre, world) -> None:
    path = f"/admin/scheduling/cell/{world.cell.pk}/join-token/"
    assert 'name="uses"' in sre.get(path).text
    assert sre.post(path, {"uses": "0", "hours": "1"}).context["form"].errors
    answer = sre.post(path, {"uses": "3", "hours": "2"})
    token = answer.context["token"]
    assert token in answer.text
    assert "no-store" in answer["Cache-Control"]
    row = JoinToken.objects.get()
    assert (row.uses_left, row.created_by) == (3, "sre")
    assert token.split(".")[2] not in sre.get(listed("scheduling_jointoken")).text
    assert signed_in("owner").get(path).status_code in (302, 403)


def test_a_resource_is_added_to_a_live_cell(sre, world) -> None:
    path = f"/admin/scheduling/cell/{world.cell.pk}/add-resource/"
    assert 'name="name"' in sre.get(path).text
    assert "not the name of a resource" in sre.post(path, {"name": "TPU"}).text
    assert sre.post(path, {"name": "tpu"}).status_code == 302
    world.cell.refresh_from_db()
    assert world.cell.extra_resources == ["tpu"]
    assert signed_in("owner").post(path, {"name": "fpga"}).status_code in (302, 403)
    world.cell.refresh_from_db()
    assert world.cell.extra_resources == ["tpu"]


def test_tokens_are_revoked(sre, world) -> None:
    signed_in("owner").post("/tokens/", {"name": "ci", "scopes": ["read"]})
    act(sre, "quota_token", "revoke", Token.objects.get())
    assert Token.objects.get().revoked_at is not None
    assert Record.objects.latest("revision").kind == "token.revoked"


def add(client: Client, page: str, **given):
    return client.post(reverse(f"admin:{page}_add"), given)


def newest() -> tuple[str, str]:
    record = Record.objects.latest("revision")
    return record.kind, record.actor


def test_tenants_members_and_capabilities_change_through_services(sre, world) -> None:
    assert (
        add(
            sre,
            "quota_tenant",
            name="fresh",
            title="T",
            contact="",
            max_jobs=5,
            task_api="read",
            max_teams=1,
            time_zone="UTC",
        ).status_code
        == 302
    )
    tenant = Tenant.objects.get(name="fresh")
    assert (tenant.max_jobs, newest()) == (5, ("tenant.changed", "sre"))
    user = get_user_model().objects.get(username="viewer")
    assert add(sre, "quota_membership", tenant=tenant.pk, user=user.pk, role="owner").status_code == 302
    assert newest() == ("member.set", "sre")
    membership = Membership.objects.get(tenant=tenant)
    Membership.objects.create(tenant=tenant, user=get_user_model().objects.get(username="sre"), role="owner")
    path = reverse("admin:quota_membership_change", args=[membership.pk])
    assert sre.post(path, {"role": "viewer"}).status_code == 302
    membership.refresh_from_db()
    assert membership.role == "viewer"
    sre.post(reverse("admin:quota_membership_delete", args=[membership.pk]), {"post": "yes"})
    assert newest() == ("member.removed", "sre")
    assert add(sre, "quota_capability", user=user.pk, kind="any-job", cell="cc", reason="on call").status_code == 302
    assert newest() == ("capability.granted", "sre")
    capability = Capability.objects.get()
    sre.post(reverse("admin:quota_capability_delete", args=[capability.pk]), {"post": "yes"})
    assert newest() == ("capability.revoked", "sre")


def test_quota_is_granted_in_words_and_ended(sre, world) -> None:
    band = PriorityBand.objects.get(name="batch")
    given = {
        "tenant": world.tenant.pk,
        "cell": "cc",
        "band": band.pk,
        "cpu": "2500m",
        "ram": "1Gi",
        "starts_at_0": "2026-01-01",
        "starts_at_1": "00:00:00",
        "reason": "trial",
        "beyond_capacity": "on",
    }
    wrong = add(sre, "quota_quota", **{**given, "ram": "much"})
    assert wrong.status_code == 200
    assert "not a quantity of ram" in wrong.text
    assert add(sre, "quota_quota", **given).status_code == 302
    quota = Quota.objects.get(band=band)
    assert (quota.amounts[:2], newest()) == ([2500, 2**30], ("quota.granted", "sre"))
    assert "2.5 cores, 1 GiB ram" in sre.get(listed("quota_quota")).text
    assert sre.get(reverse("admin:quota_quota_change", args=[quota.pk])).status_code == 200
    act(sre, "quota_quota", "end_now", quota)
    quota.refresh_from_db()
    assert quota.ends_at is not None


BAND = {"low": 101, "high": 119, "preempts_within": "on", "price_milli": 500, "oversell_milli": 100}


def test_bands_that_overlap_are_refused_beside_the_field(sre, world) -> None:
    band = PriorityBand.objects.get(name="batch")
    path = reverse("admin:quota_priorityband_change", args=[band.pk])
    for confirmed in ({}, {"_confirmed": "1"}):
        answer = sre.post(path, {**BAND, "low": 50, "high": 130, **confirmed})
        assert answer.status_code == 200
        assert "overlap another band" in answer.text
        assert 'name="_confirmed"' not in answer.text
    band.refresh_from_db()
    assert (band.low, band.high) == (100, 119)


def test_a_change_of_a_band_is_shown_with_what_it_does_and_made_when_confirmed(sre, world) -> None:
    band = PriorityBand.objects.get(name="batch")
    published_capacity.publish(cell="cc", capacity=rows.LARGE, revision=1)
    rows.grant(world.tenant, world.cell, "batch", (10_000, 0, 0, 0, 0, 0))
    path = reverse("admin:quota_priorityband_change", args=[band.pk])
    before = Record.objects.count()
    shown = sre.post(path, BAND)
    warning = "More quota is already sold than the change allows"
    for told in ("Change band batch?", warning, "3.6 cores", "no end", "ubar"):
        assert told in shown.text, told
    band.refresh_from_db()
    assert (band.low, Record.objects.count()) == (100, before)
    assert sre.post(path, {**BAND, "_confirmed": "1"}).status_code == 302
    band.refresh_from_db()
    assert (band.low, band.price_milli, band.oversell_milli) == (101, 500, 100)
    assert newest() == ("band.set", "sre")


def test_prices_are_shown_with_what_orders_would_have_cost_and_set_when_confirmed(sre, world) -> None:
    published_capacity.publish(cell="cc", capacity=rows.LARGE, revision=1)
    path = reverse("admin:quota_pricelist_add")
    form = sre.get(path).text
    assert 'value="0.02"' in form  # the form begins with the default list
    given = {
        "cell": "cc",
        "base_cpu": "1.5",
        "usage_ram": "0.25",
        "curve_lines": "50 1\n99.5% ×2",
        "note": "dearer",
        "valid_from_0": "",
        "valid_from_1": "",
    }
    shown = sre.post(path, given).text
    for told in ("Set these prices for cell cc?", "There are no orders", "1 core", "1,080.00", "2,160.00"):
        assert told in shown, told
    assert not PriceList.objects.filter(version=1).exists()
    assert sre.post(path, {**given, "_confirmed": "1"}).status_code == 302
    row = PriceList.objects.get(version=1)
    assert (row.base, row.usage) == ({"cpu": 1_500_000}, {"ram": 250_000})
    assert (row.curve, row.note, newest()) == ([[500, 1000], [995, 2000]], "dearer", ("prices.set", "sre"))
    assert sre.get(reverse("admin:quota_pricelist_change", args=[row.pk])).status_code == 200
    assert sre.post(reverse("admin:quota_pricelist_change", args=[row.pk]), given).status_code == 403


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"base_cpu": "much"}, "not an amount of credits"),
        ({"base_cpu": "-1"}, "whole micro-credits"),
        ({"curve_lines": "50"}, "Line 1"),
        ({"curve_lines": "50 1\n40 2"}, "is not above the share"),
        ({"curve_lines": "1 Infinity"}, "Line 1"),
        ({"cell": "dd"}, "Select a valid choice"),
    ],
    ids=["text", "negative", "half a point", "backward", "infinite", "cell"],
)
def test_prices_that_are_none_are_reported_beside_the_field(sre, world, changed, told) -> None:
    published_capacity.publish(cell="cc", capacity=rows.LARGE, revision=1)
    given = {"cell": "cc", "base_cpu": "1", "curve_lines": "", "valid_from_0": "", "valid_from_1": "", **changed}
    answer = sre.post(reverse("admin:quota_pricelist_add"), given)
    assert answer.status_code == 200
    assert told in answer.text
    assert 'name="_confirmed"' not in answer.text


def test_a_cells_page_shows_its_schedulers_and_who_waits(sre, world) -> None:
    path = reverse("admin:scheduling_cell_change", args=[world.cell.pk])
    wakeups.client().delete(f"borg:passes:{world.cell.pk}:default")
    page = sre.get(path).text
    assert "No process runs this scheduler" in page
    assert f"python -m scheduling.master {world.cell.name}." in page
    lease.take(world.cell.id, scheduler="default", holder="node-1:4711:ab", ttl_s=60)
    one = pass_log.Pass(
        at=1.79e9,
        revision=7,
        pending=1_200,
        classes=50,
        placed=1_000,
        conflicts=25,
        preempted=2,
        unplaced=200,
        cache_hits=900,
        cache_misses=100,
        pass_ms=9.4,
        commit_ms=70.2,
    )
    pass_log.record(world.cell.id, "cc", "default", one)
    page = sre.get(path).text
    assert "Process node-1:4711:ab runs this scheduler (lease epoch 1)." in page
    for told in ("9.4 + 70.2", "9.4 · 9.4 ms", "25 (2.4 %)", "90.0 %", "1,200", "14:13:20", "production"):
        assert told in page, told


def test_a_cells_settings_are_checked_and_journalled(sre, world) -> None:
    path = reverse("admin:scheduling_cell_change", args=[world.cell.pk])
    page = sre.get(path).text
    assert "scorer" in page
    assert "hybrid" in page
    wrong = sre.post(path, {"settings": '{"scorer": "luck"}'})
    assert "must be hybrid or best-fit or e-pvm" in wrong.text
    assert sre.post(path, {"settings": '{"scorer": "e-pvm"}'}).status_code == 302
    world.cell.refresh_from_db()
    assert world.cell.settings == {"scorer": "e-pvm"}
    assert Event.objects.latest("revision").kind == "cell.set"
    assert add(sre, "scheduling_cell", name="dd", cluster="", settings="{}").status_code == 302
    assert Cell.objects.get(name="dd").revision == 1
    taken = add(sre, "scheduling_cell", name="dd", cluster="", settings="{}")
    assert "already exists" in taken.text


def test_accounts_and_the_clock_have_pages(sre, world) -> None:
    for page in ("auth_user", "auth_group", "django_celery_beat_periodictask", "django_celery_beat_intervalschedule"):
        assert sre.get(reverse(f"admin:{page}_add")).status_code == 200, page
    user = get_user_model().objects.get(username="viewer")
    assert sre.get(reverse("admin:auth_user_change", args=[user.pk])).status_code == 200


@pytest.mark.parametrize("action, release", [("quarantine_stop", "stop"), ("quarantine_keep", "keep")])
def test_an_sre_decides_about_what_is_in_quarantine(sre, world, action: str, release: str) -> None:
    stranger = {"key": f"{'a' * 32}/0/1", "name": "cc/ubar/old/0", "since": 1.0}
    world.machine.quarantined = [stranger]
    world.machine.save(update_fields=["quarantined"])
    act(sre, "scheduling_machine", action, world.machine, reason="it is from before the restore")
    world.machine.refresh_from_db()
    assert world.machine.quarantined == [{**stranger, "release": release}]


def test_accelerators_and_further_resources_of_a_machine_and_a_task_are_shown(world, sre) -> None:
    Cell.objects.filter(pk=world.cell.pk).update(extra_resources=["tpu"])
    Machine.objects.filter(pk=world.machine.pk).update(capacity=[8000, 2**34, 2**40, 0, 1000, 100, 3])
    Task.objects.filter(job=world.job).update(limit=[100, 2**26, 2**26, 0, 1000, 1, 2])
    for page in (listed("scheduling_machine"), reverse("admin:scheduling_machine_change", args=[world.machine.pk])):
        assert "8 cores, 16 GiB ram, 1 TiB disk, 1 accelerator, 3 tpu<" in sre.get(page).text
    task = Task.objects.filter(job=world.job).earliest("id")
    told = sre.get(reverse("admin:scheduling_task_change", args=[task.pk])).text
    assert "1 accelerator, 1 ports, 2 tpu<" in told


def test_headers_of_a_list_are_computed_once_for_all_rows(sre, world, monkeypatch) -> None:
    from unfold.templatetags import unfold_list

    from portal.admin_site import kept_headers

    computed = []

    def headers(changes: object) -> list[object]:
        computed.append(changes)
        return list(plain(changes))

    plain = unfold_list.result_headers.__wrapped__
    monkeypatch.setattr(unfold_list, "result_headers", kept_headers(headers))
    for name in ("a", "b", "c"):
        furnish(world, name)
    assert b"node-c" in sre.get("/admin/scheduling/machine/").content
    assert len(computed) == 1
