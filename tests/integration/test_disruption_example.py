"""The example of a disruption budget: a real master drains its machines, and the next master goes on with its count."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.cli import jobfile
from scheduling.machines.machines import machines_drain
from scheduling.master.loop import Master
from scheduling.models import DisruptionCount, Event, Job, Machine, Task
from tests.integration import cli_world, repack_rows, rows, world

pytestmark = pytest.mark.django_db(transaction=True)
HOST = (8_000, 2**34, 2**37, 0, 0, 1_000)


def turns(cell, master: Master, number: int = 8) -> None:
    for _ in range(number):
        master.run(0.0)
        repack_rows.answer(cell)


def evicted(job: Job) -> int:
    return Event.objects.filter(job_id=job.id, kind="task.evicted").count()


def test_a_drain_evicts_as_many_as_the_share_and_the_rate_allow(cell, ann, tenant, tmp_path, shared_portal) -> None:
    sre = cli_world.of(tmp_path, shared_portal, "sre", sre=True)
    me = world.bearer(world.a_user("ann"), tenant=tenant)
    for number in range(2):
        rows.a_machine(cell, f"m{number}", capacity=HOST)
    file, api = jobfile.read("examples/disruption-budget.yaml"), f"/api/v1/cells/{cell.name}"
    rules = "at most 2 tasks down at once (10%) and at most 6 disruptions within 1 hour"
    assert rules in sre.out("plan", sre.file(file))
    posted = me.post(f"{api}/jobs/", file | {"tenant": "ubar"}, content_type="application/json")
    assert posted.status_code == 201, posted.text
    job, master = Job.objects.get(), Master(cell.id)
    turns(cell, master, 3)
    assert Task.objects.filter(job=job, up=True).count() == 20
    rows.a_machine(cell, "m2", capacity=HOST)

    machines_drain(principal=rows.ME, cell=cell, machines=list(Machine.objects.exclude(hostname="m2")), reason="racks")
    turns(cell, master)
    assert (evicted(job), repack_rows.most_down(cell, job)) == (6, 2)
    turns(cell, Master(cell.id), 2)
    assert evicted(job) == 6, "the next master starts with the count of the first"
    assert "ubar/shop (6 of 6 disruptions within 1 hour, next " in sre.out("drains")
    told = "No disruption is left: 6 tasks were disrupted within 1 hour, and the job allows 6"
    assert told in me.get(f"{api}/jobs/ubar/shop/why/").text
    shown = me.get(f"{api}/jobs/ubar/shop/").json()
    assert (shown["disruption_budget"], shown["max_disruptions"], shown["disruption_window_s"]) == (2, 6, 3600.0)
    browser = Client()
    browser.force_login(world.a_user("ann"))
    assert told in browser.get(reverse("sigma:job", args=[cell.name, "ubar", "shop"])).text

    for row in DisruptionCount.objects.all():
        row.began_at, row.at = (at - dt.timedelta(seconds=3601) for at in (row.began_at, row.at))
        row.save()
    turns(cell, Master(cell.id))
    assert (evicted(job), repack_rows.most_down(cell, job)) == (12, 2)


def test_a_master_preempts_another_job_when_nothing_of_the_rate_is_left(cell, ann) -> None:
    small = (
        rows.a_machine(cell, "m0", capacity=(1_000, *HOST[1:])),
        rows.a_machine(cell, "m1", capacity=(1_000, *HOST[1:])),
    )
    needs = {"limit": {"cpu": 1, "ram": "64Mi", "disk": "64Mi"}}
    low = world.with_task("low", tasks=1, **needs) | {"priority": 100, "disruption_budget": {"max_disruptions": 1}}
    other = world.with_task("other", tasks=1, **needs) | {"priority": 110}
    jobs = [world.submit(ann, cell, file) for file in (low, other)]
    for job, machine in zip(jobs, small, strict=True):
        world.bring_up(job, machine)
    now = timezone.now()
    DisruptionCount.objects.create(job=jobs[0], began_at=now, at=now, number=1)
    world.submit(ann, cell, world.with_task("high", tasks=1, **needs) | {"priority": 200})
    Master(cell.id).run(0.0)
    assert [evicted(job) for job in jobs] == [0, 1], "without the rate, the task of lower priority is preempted"
