"""Whether a planned job would fit, and which shapes would fit better: counted from the rows."""

from __future__ import annotations

import json

import pytest

from quota.vocabulary.permissions import system
from scheduling.jobs import jobs
from scheduling.jobs.guidance import guidance
from scheduling.models import Cell, Machine
from scheduling.spec.job_spec import JobSpecification
from tests.integration import portal_world, rows, world
from tests.integration.test_why import place

pytestmark = pytest.mark.django_db(transaction=True)
GIB = 2**30


@pytest.fixture
def cell() -> Cell:
    cell = rows.a_cell()
    for name in ("m1", "m2", "m3"):
        rows.a_machine(cell, name, capacity=(8000, 32 * GIB, 2**40, 0, 0, 10))
    Machine.objects.filter(hostname="m3").update(attributes={"flash": "yes"})
    return cell


def wanted(cell: Cell, **task: object) -> JobSpecification:
    rows.a_tenant("ubar")
    file = world.a_file("new", priority=210) | {"task": {"command": ["x"], **task}}
    return jobs.spec_for(principal=system("test"), cell=cell, file=file, tenant="ubar")


def test_room_is_counted_by_limits_for_prod_and_by_reservations_for_the_rest(cell) -> None:
    prod = rows.a_job(cell, rows.a_tenant("ubar"), "prod", tasks=1, limit=(6000, GIB, GIB, 0, 0, 1))
    place(prod, 0, Machine.objects.get(hostname="m1").id)
    prod.tasks.update(reservation=[1000, GIB, GIB, 0, 0, 1])
    asked = {"cpu": 4, "ram": "1Gi", "disk": "1Gi"}
    (fit,) = guidance(cell, wanted(cell, limit=asked))
    assert (fit.tasks, fit.shapes.machines, fit.shapes.now, fit.shapes.room) == (3, 3, 2, 4)
    batch = wanted(cell, limit=asked)
    batch = type(batch)(**{**{f: getattr(batch, f) for f in batch.__struct_fields__}, "priority": 110})
    (fit,) = guidance(cell, batch)
    assert (fit.shapes.now, fit.shapes.room) == (3, 5)


def test_constraints_and_machines_that_are_down_count(cell) -> None:
    limit = {"cpu": 1, "ram": "1Gi", "disk": "1Gi"}
    flash = wanted(cell, limit=limit, constraints=[{"attribute": "flash", "relation": "present"}])
    assert guidance(cell, flash)[0].shapes.now == 1
    Machine.objects.filter(hostname="m3").update(state="down")
    (fit,) = guidance(cell, flash)
    assert (fit.shapes.machines, fit.shapes.now) == (1, 0)


def test_what_no_machine_could_hold_is_led_to_the_nearest_shape(cell, django_assert_max_num_queries) -> None:
    job_spec = wanted(cell, limit={"cpu": 12, "ram": "1Gi", "disk": "1Gi"})
    with django_assert_max_num_queries(3):
        (fit,) = guidance(cell, job_spec)
    assert (fit.shapes.machines, fit.shapes.asked) == (0, None)
    assert fit.shapes.one_more is not None
    assert fit.shapes.one_more.limit[0] == 8000


def test_plans_tell_it_at_every_door(cell) -> None:
    ann = world.bearer(world.a_user("ann", tenant=rows.a_tenant("ubar")))
    rows.grant(rows.a_tenant("ubar"), cell, "production")
    file = world.a_file("new") | {
        "task": {"command": ["x"], "limit": {"cpu": 5, "ram": "1Gi", "disk": "1Gi"}},
        "cell": "cc",
    }
    answer = ann.post("/api/v1/cells/cc/jobs/ubar/new/plan/", file, content_type="application/json").json()
    (fit,) = answer["guidance"]
    assert fit["told"] == [
        "Free now, preempting nobody: room for 3 tasks on 3 machines; 3 could hold one if empty.",
        "Its commonest kind of machine (3 machines) holds 1; of 4 cores of cpu it would hold 2.",
        "It could ask for up to 8 cores of cpu, 32 GiB of ram, 1 TiB of disk, and such a machine would still hold 1.",
    ]
    assert fit["shapes"]["one_more"]["limit"]["cpu"] == 4000
    portal_world.person("boss", is_staff=True, is_superuser=True)
    boss = portal_world.signed_in("boss")
    page = boss.post("/submit/", {"cell": "cc", "tenant": "ubar", "do": "plan", "text": json.dumps(file)})
    assert "of 4 cores of cpu it would hold 2" in page.text
