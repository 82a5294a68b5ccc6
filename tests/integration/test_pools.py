"""Tests of machine pools and of attributes that SREs set: who may write them, and what the cell does with them."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from borglet.messages import Hello
from portal.cli import jobfile
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment, Plan
from scheduling.core.vocabulary.requirement import Constraint, Relation
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.history.checkpoints.redact import redact
from scheduling.history.checkpoints.rows import header_of, load_recorded, read_cell
from scheduling.history.checkpoints.tables import state_of, tables_of
from scheduling.jobs.cell_fits import cell_fits
from scheduling.journal import journal
from scheduling.link.shard import writer
from scheduling.machines import machines
from scheduling.machines.evacuation import evict_within_budgets
from scheduling.machines.facts import MAX_ATTRIBUTES
from scheduling.machines.pool_clearing import PoolClearer
from scheduling.master.commit import commit
from scheduling.master.loop import Master
from scheduling.master.snapshot import load_state
from scheduling.models import Machine, Pool, Task
from scheduling.policy import brake_rules
from scheduling.policy.cell_settings import CellSettings
from scheduling.pools import selectors
from scheduling.pools.attributes import attributes_set, machines_assign
from scheduling.pools.pools import pool_change, pool_delete, pool_write
from scheduling.pools.rules import MOST_SET
from scheduling.usage.cell_view import ViewPublisher
from tests.integration import cli_world, rows, world

pytestmark = pytest.mark.django_db(transaction=True)


def written(cell, name: str = "gpu", **given: Any) -> Pool:
    return pool_write(principal=rows.ME, cell=cell, name=name, **given)


def attributes(machine: Machine) -> dict[str, str]:
    found: dict[str, str] = Machine.objects.get(pk=machine.pk).attributes
    return found


def set_on(cell, *fleet: Machine, removed: tuple[str, ...] = (), **values: str) -> list[Machine]:
    return attributes_set(principal=rows.ME, cell=cell, machines=fleet, values=values, removed=removed)


def second(cell) -> int:
    """Let tasks leave dedicated pools as the master does in one second, and return how many were evicted."""
    return PoolClearer(cell.id).turn(CellSettings(), seconds=1.0)


def hello(machine: Machine, **reported: str) -> None:
    answer = writer.greet(machine.cell_id, {machine.id: Hello(1, machine.hostname, "boot", "1", attributes=reported)})
    assert isinstance(answer[machine.id], int)


def test_an_attribute_of_an_sre_wins_over_a_reported_one_until_it_is_removed(cell, machine) -> None:
    hello(machine, disk="ssd", zone="a")
    assert set_on(cell, machine, disk="nvme", tier="gold") == [machine]
    hello(machine, disk="hdd", zone="a", pool="gpu")
    found = attributes(machine)
    assert (found["disk"], found["tier"], found["zone"]) == ("nvme", "gold", "a")
    assert "pool" not in found, "a machine cannot put itself into a pool"
    constraint = Constraint("tier", Relation.EQUAL, "gold")
    assert load_state(cell.id).machines.attributes.mask(constraint).sum() == 1
    set_on(cell, machine, removed=("disk", "tier", "unknown"))
    found = attributes(machine)
    assert (found["disk"], "tier" in found) == ("hdd", False), "the newest reported value comes back"
    assert set_on(cell, machine, removed=("disk",)) == [], "nothing changes"


def test_attributes_of_sres_do_not_count_against_the_limit_of_reported_ones(cell, machine) -> None:
    reported = {f"a{number}": "x" for number in range(MAX_ATTRIBUTES - 1)}  # and the protocol
    hello(machine, **reported)
    set_on(cell, machine, **{f"b{number}": "y" for number in range(MOST_SET)})
    written(cell, selector="b0=y")
    hello(machine, **reported | {"a0": "z"})
    machines.machine_grow(principal=rows.ME, machine=machine, capacity={"cpu": 1})
    assert len(attributes(machine)) == MAX_ATTRIBUTES + MOST_SET + 1
    with pytest.raises(Rejected, match="65 attributes that SREs set"):
        set_on(cell, machine, more="y")


def test_attributes_change_on_all_chosen_machines_or_on_none(cell, machine, ann) -> None:
    other = rows.a_machine(cell, "m2")
    machines.machine_remove(principal=rows.ME, machine=other, reason="broken")
    with pytest.raises(Conflict, match="removed from the cell"):
        set_on(cell, machine, other, tier="gold")
    with pytest.raises(Rejected, match="put the machine into a pool instead"):
        set_on(cell, machine, pool="gpu")
    with pytest.raises(Forbidden):
        attributes_set(principal=ann, cell=cell, machines=[machine], values={"tier": "gold"})
    assert "tier" not in attributes(machine)


def test_machines_belong_to_a_pool_by_selector_or_by_assignment(cell, machine) -> None:
    other = rows.a_machine(cell, "m2", rack="r2")
    written(cell, selector="rack=r1")
    assert [attributes(one).get("pool") for one in (machine, other)] == ["gpu", None]
    machines_assign(principal=rows.ME, cell=cell, machines=[other], pool="gpu")
    set_on(cell, other, tier="gold")
    assert attributes(other)["pool"] == "gpu"
    late = rows.a_machine(cell, "m3")
    hello(late)
    assert attributes(late)["pool"] == "gpu", "a machine that connects later belongs to it, too"
    written(cell, "gold", selector="tier=gold")
    assert attributes(other)["pool"] == "gpu", "the assignment wins"
    machines_assign(principal=rows.ME, cell=cell, machines=[other], pool="", reason="spare")
    assert attributes(other)["pool"] == "gold"
    newest = [record.event for record in journal.tail(cell.id, after=0)][-1]
    assert (newest.machine_id, newest.reason) == (other.id, "spare")
    hello(late, tier="gold")
    assert attributes(late)["pool"] == "gpu", "selectors do not read what a machine reports"
    (state, _) = selectors.states_of(rows.ME, cell, list(Pool.objects.order_by("-name")))
    assert (state.pool.name, state.machines, state.up) == ("gpu", 2, 2)
    pool_change(principal=rows.ME, cell=cell, name="gpu", selector="")
    assert "pool" not in attributes(machine)
    pool_delete(principal=rows.ME, cell=cell, name="gold")
    assert "pool" not in attributes(other)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "Not a label"}, "name"),
        ({"dedicated": True}, "tenants"),
        ({"use": "must"}, "tenants"),
        ({"use": "always", "tenants": ["ubar"]}, "use"),
        ({"others": "leave", "tenants": ["ubar"]}, "others"),
        ({"others": "die"}, "others"),
        ({"tenants": ["nobody"]}, "tenants"),
        ({"selector": "pool=gpu"}, "selector"),
        ({"selector": "a=b,"}, "selector"),
    ],
)
def test_a_wrong_pool_is_rejected_with_its_field(cell, tenant, given: dict[str, Any], field: str) -> None:
    with pytest.raises(Rejected) as rejected:
        written(cell, **{"name": "gpu", **given})
    assert list(rejected.value.fields) == [field]
    assert not Pool.objects.exists()


def test_a_tenant_cannot_have_to_run_in_two_pools(cell, tenant) -> None:
    written(cell, tenants=["ubar"], use="must")
    with pytest.raises(Rejected, match="ubar must run in pool gpu already"):
        written(cell, "other", tenants=["ubar"], use="must")
    with pytest.raises(Conflict, match="has a machine pool gpu"):
        written(cell)
    with pytest.raises(NotFound):
        pool_change(principal=rows.ME, cell=cell, name="none", dedicated=True)


def test_the_scheduler_follows_a_dedicated_pool_at_once(cell, machine, tenant, ann) -> None:
    rows.a_tenant("others")
    master = Master(cell.id)
    master.run(0.0)
    written(cell, selector="rack=r1", tenants=["others"], dedicated=True)
    job = world.submit(ann, cell, world.a_file(tasks=1))
    master.run(0.0)
    assert Task.objects.get(job=job).state == "pending"
    pool_change(principal=rows.ME, cell=cell, name="gpu", tenants=["others", "ubar"])
    master.run(0.0)
    assert Task.objects.get(job=job).state == "running"


def test_a_plan_that_is_older_than_a_change_of_a_pool_is_not_committed(cell, machine, tenant, ann) -> None:
    rows.a_tenant("others")
    written(cell, selector="rack=r1", tenants=["others"])
    job = world.submit(ann, cell, world.a_file(tasks=1))
    old = Plan(revision=journal.newest(cell.id), assignments=(Assignment(job.id, 0, machine.id, ports=(20000,)),))
    pool_change(principal=rows.ME, cell=cell, name="gpu", dedicated=True)
    assert commit(cell.id, old, principal=rows.ME).refused == list(old.assignments)
    pool_change(principal=rows.ME, cell=cell, name="gpu", dedicated=False)
    new = Plan(revision=journal.newest(cell.id), assignments=old.assignments)
    assert commit(cell.id, new, principal=rows.ME).applied == list(new.assignments)


def test_tasks_of_other_tenants_are_shown_and_leave_within_budgets(cell, machine, tenant, ann) -> None:
    rows.a_tenant("others")
    job = world.submit(ann, cell, world.a_file(tasks=4, disruption_budget=1))
    world.bring_up(job, machine)
    pool = written(cell, selector="rack=r1", tenants=["others"], dedicated=True)
    preview = selectors.preview_of(rows.ME, pool)
    (only,) = preview.foreign
    assert (only.job, only.tasks, only.may) == ("ubar/web", 4, 1)
    (state,) = selectors.states_of(rows.ME, cell, [pool])
    assert (state.tasks, state.foreign) == (4, 4)
    assert second(cell) == 0, "they stay until they end"
    with pytest.raises(Forbidden):
        selectors.preview_of(ann, pool)
    pool_change(principal=rows.ME, cell=cell, name="gpu", others="leave")
    assert second(cell) == 1
    assert second(cell) == 0, "the budget is used up"
    (evicted,) = [r.event for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.TaskEvicted)]
    assert evicted.detail == "machine m1 is in the pool gpu, which is dedicated to other tenants"
    assert Machine.objects.get(pk=machine.pk).state == "up", "tasks of the pool's tenants start there meanwhile"
    pool_change(principal=rows.ME, cell=cell, name="gpu", tenants=["others", "ubar"])
    assert selectors.preview_of(rows.ME, Pool.objects.get()).foreign == ()


def test_a_tenant_that_joins_a_pool_meanwhile_keeps_its_tasks(cell, machine, tenant, ann) -> None:
    rows.a_tenant("others")
    job = world.submit(ann, cell, world.a_file(tasks=2))
    world.bring_up(job, machine)
    written(cell, selector="rack=r1", tenants=["others"], dedicated=True, others="leave")
    clearer, looks = PoolClearer(cell.id), []

    def find() -> Any:
        if looks:
            Pool.objects.update(tenants=["others", "ubar"])
        looks.append(1)
        return clearer._tasks()

    assert evict_within_budgets(cell.id, find, EvictionCause.DEDICATED_POOL, limit=9, patience_s=60.0) == 0
    assert len(looks) == 2, "once again under the lock"
    pool_change(principal=rows.ME, cell=cell, name="gpu", description="the event of the change above")


def test_very_many_tasks_that_have_to_leave_must_be_confirmed(cell, machine, tenant, ann, monkeypatch) -> None:
    monkeypatch.setattr(brake_rules, "ALWAYS_STOPPED", 1)
    rows.a_tenant("others")
    world.bring_up(world.submit(ann, cell, world.a_file(tasks=3)), machine)
    rules = {"tenants": ["others"], "dedicated": True, "others": "leave"}
    with pytest.raises(Conflict, match="confirm=3"):
        written(cell, selector="rack=r1", **rules)
    assert not Pool.objects.exists()
    written(cell, **rules)
    with pytest.raises(Conflict, match="confirm=3"):
        machines_assign(principal=rows.ME, cell=cell, machines=[machine], pool="gpu")
    pool_change(principal=rows.ME, cell=cell, name="gpu", selector="tier=gold")
    with pytest.raises(Conflict, match="confirm=3"):
        set_on(cell, machine, tier="gold")
    assert "pool" not in attributes(machine)
    machines_assign(principal=rows.ME, cell=cell, machines=[machine], pool="gpu", confirm=3)
    assert attributes(machine)["pool"] == "gpu"


def test_pools_are_in_snapshots_checkpoints_and_replays(cell, machine, tenant) -> None:
    written(cell, selector="rack=r1", tenants=["ubar"], dedicated=True, use="prefer")
    set_on(cell, machine, tier="gold")
    state = load_state(cell.id)
    assert state.pools.pools["gpu"].tenants == ("ubar",)
    assert state.diff(load_recorded(cell.id)) == []
    header, tables = read_cell(cell.id)
    again = state_of(tables_of(load_recorded(cell.id)), extra_resources=(), revision=header.revision)
    assert again.pools.pools == state.pools.pools
    del tables["pools"]
    assert state_of(tables, extra_resources=(), revision=header.revision).pools.pools == {}, "older checkpoints"
    hidden = redact(header_of(cell.id), read_cell(cell.id)[1], key=b"k")[1]
    blind = state_of(hidden, extra_resources=(), revision=header.revision)
    (pool,) = blind.pools.pools.values()
    assert pool.pool not in ("gpu", "")
    assert "ubar" not in pool.tenants
    slot = blind.machines.slot[machine.id]
    assert blind.machines.attributes.of(slot)["pool"] == pool.pool, "the machine is still in its pool"


def test_fit_counts_only_machines_that_the_tenant_may_use(cell, machine, tenant, ann) -> None:
    rows.a_tenant("others")
    rows.a_machine(cell, "m2", rack="r2")
    written(cell, selector="rack=r1", tenants=["others"], dedicated=True)
    ViewPublisher(cell.id).publish(load_state(cell.id))
    sre = world.principal("sam", sre=True)

    def fits(who: Principal, **named: str) -> int:
        (only,) = cell_fits(who, world.a_file() | named).cells
        return only.fits[0].shapes.now

    assert (fits(ann), fits(ann, tenant="ubar"), fits(sre, tenant="ubar")) == (1, 1, 1)
    assert fits(sre, tenant="others") == 2
    assert fits(ann, tenant="others") == 1, "she may not see this tenant"


def test_tenants_see_only_pools_that_name_them(cell, machine, tenant, ann) -> None:
    rows.a_tenant("others")
    written(cell, selector="rack=r1", tenants=["others", "ubar"])
    written(cell, "hidden", tenants=["others"])
    (seen,) = selectors.states_of(ann, cell, list(selectors.pools_of(ann, cell)))
    assert (seen.pool.name, seen.tenants, seen.machines, seen.tasks) == ("gpu", ("ubar",), 1, None)
    with pytest.raises(NotFound):
        selectors.pool_named(ann, cell, "hidden")
    with pytest.raises(Forbidden):
        pool_delete(principal=ann, cell=cell, name="gpu")


def test_the_number_of_queries_does_not_depend_on_the_number_of_pools(cell, machine, django_assert_num_queries) -> None:
    for number in range(3):
        written(cell, f"p{number}", selector=f"rack=r{number}")
    found = list(Pool.objects.all())
    for some in (found[:1], found):
        with django_assert_num_queries(2):
            selectors.states_of(rows.ME, cell, some)


def test_rest_writes_pools_and_attributes(cell, machine, tenant) -> None:
    sre = world.bearer(world.a_user("sam", sre=True))
    base = f"/api/v1/cells/{cell.name}/"

    def post(path: str, body: dict[str, Any]) -> Any:
        return sre.post(base + path, body, content_type="application/json")

    answer = post("machines:attributes", {"rack": "r1", "set": {"tier": "gold"}})
    assert (answer.status_code, answer.json()) == (200, {"chosen": 1, "changed": ["m1"]})
    body = {"name": "gpu", "selector": "tier=gold", "tenants": ["ubar"], "dedicated": True}
    rehearsed = post("pools/?dry_run=true", body)
    assert (rehearsed.status_code, rehearsed.json()["machines"]) == (201, 1)
    assert not Pool.objects.exists()
    assert post("pools/", body).status_code == 201
    (row,) = sre.get(base + "pools/").json()["results"]
    assert (row["name"], row["machines"], row["dedicated"]) == ("gpu", 1, True)
    shown = sre.get(base + "machines/m1/").json()
    assert (shown["attributes"]["pool"], shown["set_attributes"]) == ("gpu", {"tier": "gold"})
    changed = sre.patch(base + "pools/gpu/", {"use": "must"}, content_type="application/json").json()
    assert (changed["use"], changed["preview"]["outside"]) == ("must", 0)
    assert post("machines:pool", {"machines": ["m1"], "pool": "gpu"}).json()["changed"] == ["m1"]
    assert post("machines:pool", {"machines": ["m1"], "rack": "r1", "pool": ""}).status_code == 422
    assert sre.delete(base + "pools/gpu/").status_code == 204
    assert sre.get(base + "pools/gpu/").status_code == 404


def test_borgctl_writes_a_pool_and_the_example_runs_there(cell, tenant, ann, tmp_path, shared_portal) -> None:
    sre = cli_world.of(tmp_path, shared_portal, "sre", sre=True)
    fleet = [rows.a_machine(cell, f"m{number}") for number in range(3)]
    assert "Changed 1 of 1 machine: m1." in sre.out("machine", "attributes", "m1", "--set", "tier=gold")
    assert "tier=gold" in sre.out("machine", "show", "m1")
    shown = sre.out("pool", "add", "fast", "--members", "tier=gold", "--tenant", "ubar", "--dedicated", "--dry-run")
    assert "1 machine, 1 up" in shown
    assert "This is a preview" in shown
    assert "No machine pool." in sre.out("pool", "list")
    sre.out("pool", "add", "fast", "--members", "tier=gold", "--tenant", "ubar", "--dedicated")
    assert "1 of 1 up" in sre.out("pool", "list")
    job = world.submit(ann, cell, jobfile.read("examples/pool.yaml"))
    Master(cell.id).run(0.0)
    assert set(Task.objects.filter(job=job).values_list("machine__hostname", flat=True)) == {"m1"}
    me = Client()
    me.force_login(world.a_user("ann"))
    assert "run there or elsewhere" in me.get(reverse("sigma:cell", args=[cell.name])).text
    assert "pool fast" in me.get(reverse("sigma:task", args=[cell.name, "ubar", "index", 0])).text
    assert "Changed 2 of 2 machines: m0, m2." in sre.out("pool", "assign", "fast", "m0", "m2")
    sre.out("pool", "change", "fast", "--use", "must", "--shared")
    assert "tasks of these tenants must run there" in sre.out("pool", "show", "fast")
    sre.out("pool", "release", "m0")
    assert [attributes(one).get("pool") for one in fleet] == [None, "fast", "fast"]
    sre.out("pool", "delete", "fast")
    assert [attributes(one).get("pool") for one in fleet] == [None, None, None]
