"""Tests of alloc sets on real PostgreSQL (§2.4): which jobs may live inside, what they cost, and when tasks leave."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from quota.models import QuotaUse
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import CPU
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment, Plan
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.jobs import submit_and_kill, updates
from scheduling.journal import journal
from scheduling.master.commit import commit
from scheduling.models import Departure, Job, Machine, Task
from scheduling.tasks import transitions
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)

ME = system("test")


def envelope(name: str = "shelf", *, tasks: int = 2, cpu: str = "1", **changes: Any) -> dict[str, Any]:
    """Return the job file of an alloc set. By default it has two allocs of one core each."""
    return {
        "name": name,
        "kind": "AllocSet",
        "priority": "production",
        "tasks": tasks,
        "task": {"limit": {"cpu": cpu, "ram": "1Gi", "disk": "1Gi"}},
        **changes,
    }


def inside(name: str = "web", *, tasks: int = 3, alloc_set: str = "shelf", **changes: Any) -> dict[str, Any]:
    return world.with_task(name, tasks=tasks, **changes) | {"alloc_set": alloc_set}


def put(job: Job, alloc: Job, machine: Machine, *indexes: int, into: int = 0) -> None:
    """Place pending tasks of a job into an alloc, with ports that no earlier incarnation of a task holds."""
    before = dict(Task.objects.filter(job=job).values_list("index", "incarnation"))
    with journal.write(job.cell_id, ME) as entry:
        transitions.tasks_place(
            entry,
            [
                Assignment(
                    job.id,
                    index,
                    machine.id,
                    ports=(21_000 + index + 100 * before[index],),
                    alloc=task_id(alloc.id, into),
                )
                for index in indexes
            ],
        )


@pytest.fixture
def shelf(cell, ann, machine):
    """Return an alloc set whose two allocs are placed on the machine."""
    shelf = world.submit(ann, cell, envelope())
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_place(entry, [Assignment(shelf.id, i, machine.id) for i in range(2)])
    return shelf


@pytest.fixture
def web(cell, ann, machine, shelf):
    """Return a job with two tasks in the first alloc of `shelf` and one task in the second."""
    web = world.submit(ann, cell, inside())
    put(web, shelf, machine, 0, 1)
    put(web, shelf, machine, 2, into=1)
    return web


def reported(cell, after: int) -> list[events.Event]:
    return [record.event for record in journal.tail(cell.id, after=after)]


def used(tenant, band: str = "production") -> int:
    row = QuotaUse.objects.filter(tenant=tenant, band__name=band).first()
    return row.used[CPU] if row else 0


def states(job: Job) -> list[str]:
    return list(Task.objects.filter(job=job).order_by("index").values_list("state", flat=True))


# -- tasks move into allocs


def test_the_alloc_set_pays_and_what_lives_inside_costs_no_quota(cell, tenant, ann, shelf) -> None:
    assert used(tenant) == 2000
    web = world.submit(ann, cell, inside())
    assert used(tenant) == 2000
    submitted = reported(cell, cell.revision)[-1]
    assert isinstance(submitted, events.JobSubmitted)
    assert (submitted.job_id, submitted.alloc_set) == (web.id, shelf.id)
    assert submit_and_kill.job_kill(principal=ann, job=web) == 3
    assert used(tenant) == 2000
    assert submit_and_kill.job_kill(principal=ann, job=shelf) == 2
    assert used(tenant) == 0


@pytest.mark.parametrize(
    "file, path, what",
    [
        (inside(alloc_set="shelves"), "alloc_set", "no live alloc set 'shelves'"),
        (inside(limit={"cpu": 2}), "task.limit.cpu", "an alloc of shelf has 1 core"),
        (inside() | {"overrides": {"1": {"limit": {"ram": "2Gi"}}}}, "overrides.1.limit.ram", "has 1 GiB"),
        (inside() | {"priority": 201}, "priority", "higher than the priority of alloc set shelf; give at most 120"),
    ],
)
def test_what_can_never_live_there_is_refused_by_field(cell, ann, shelf, file, path, what) -> None:
    with pytest.raises(Rejected) as caught:
        world.submit(ann, cell, file)
    assert what in caught.value.fields[path]
    assert path in caught.value.detail
    assert not Job.objects.filter(name="web").exists()


def test_an_alloc_set_and_the_jobs_inside_may_come_in_one_request(cell, ann) -> None:
    files = [inside("early"), envelope(), inside("late"), inside("large", limit={"cpu": 2})]
    verdicts = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files, tenant="ubar")
    assert [v.problem.code if v.problem else v.outcome for v in verdicts] == [
        "no-such-alloc-set",
        "submitted",
        "submitted",
        "invalid-spec",
    ]
    assert Job.objects.get(name="late").alloc_set == Job.objects.get(name="shelf")


def test_an_ended_alloc_set_takes_nobody_in(cell, ann, shelf) -> None:
    submit_and_kill.job_kill(principal=ann, job=shelf)
    with pytest.raises(Rejected, match="no live alloc set"):
        world.submit(ann, cell, inside())


def test_a_job_stays_in_its_alloc_set_or_out_of_it(cell, ann, web) -> None:
    with pytest.raises(Rejected) as caught:
        updates.job_update(principal=ann, job=web, job_spec=world.read(cell, world.a_file()))
    assert "alloc_set" in caught.value.fields


# -- tasks leave allocs


def test_a_task_that_lives_in_an_alloc_leaves_before_it(cell, machine, shelf, web) -> None:
    before = journal.newest(cell.id)
    with journal.write(cell.id, ME) as entry:
        evicted = transitions.tasks_evict(
            entry, [Eviction(task_id(shelf.id, 0), 1, "preemption", detail="by a monitor", preemptor=7 << 20)]
        )
    assert [(was.job_id, was.index) for was in evicted] == [(shelf.id, 0), (web.id, 0), (web.id, 1)]
    first, second, last = reported(cell, before)
    assert [(e.job_id, e.index, e.cause) for e in (first, second, last)] == [
        (web.id, 0, "other"),
        (web.id, 1, "other"),
        (shelf.id, 0, "preemption"),
    ]
    assert first.detail == "its alloc shelf/0 was stopped: by a monitor"
    assert states(web) == ["pending", "pending", "running"]
    # The preemptor starts when these processes are gone, because the alloc has no process of its own.
    assert set(Departure.objects.values_list("preemptor", flat=True)) == {7 << 20}
    put(web, shelf, machine, 0, 1, into=1)
    assert set(Task.objects.filter(job=web).values_list("alloc_id", flat=True)) == {task_id(shelf.id, 1)}


def test_an_eviction_that_holds_no_more_takes_nobody_along(cell, shelf, web) -> None:
    with journal.write(cell.id, ME) as entry:
        assert transitions.tasks_evict(entry, [Eviction(task_id(shelf.id, 0), 9, "other")]) == []
    assert states(web) == ["running"] * 3


def test_a_task_that_leaves_for_its_own_reason_keeps_it(cell, shelf, web) -> None:
    before = journal.newest(cell.id)
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_evict(
            entry, [Eviction(task_id(job, 0), 1, "machine-failure", gone=True) for job in (shelf.id, web.id)]
        )
    assert [(e.job_id, e.index, e.cause) for e in reported(cell, before)] == [
        (web.id, 0, "machine-failure"),
        (web.id, 1, "other"),
        (shelf.id, 0, "machine-failure"),
    ]
    assert not Departure.objects.exists()


def test_an_alloc_that_dies_sends_back_who_lived_there(cell, ann, shelf, web) -> None:
    assert submit_and_kill.job_kill(principal=ann, job=shelf, indexes=[0]) == 1
    assert states(shelf) == ["dead", "running"]
    assert states(web) == ["pending", "pending", "running"]
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(web.id, 2), "finished", 1)])
    assert states(web)[2] == "dead"


def test_nothing_is_put_into_an_alloc_that_is_gone_or_elsewhere(cell, ann, machine, shelf) -> None:
    web = world.submit(ann, cell, inside())
    other = rows.a_machine(cell, "m2")
    put(web, shelf, other, 0)
    put(web, shelf, machine, 1, into=5)
    assert states(web) == ["pending"] * 3


def test_a_plan_puts_tasks_into_allocs_that_are_still_there(cell, ann, machine, shelf) -> None:
    web = world.submit(ann, cell, inside())
    made = [
        Assignment(web.id, i, machine.id, (21_000 + i,), alloc=task_id(shelf.id, alloc))
        for i, alloc in enumerate((0, 1))
    ]
    plan = Plan(revision=journal.newest(cell.id), assignments=tuple(made))
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task_id(shelf.id, 0), 1, "other")])
    outcome = commit(cell.id, plan, principal=ME)
    assert (outcome.applied, outcome.refused) == ([made[1]], [made[0]])
    assert Task.objects.get(job=web, state="running").alloc_id == task_id(shelf.id, 1)
    (placed,) = [e for e in reported(cell, cell.revision) if isinstance(e, events.TaskPlaced) and e.job_id == web.id]
    assert placed.alloc == task_id(shelf.id, 1)


# -- killing, shrinking, growing


def test_the_last_alloc_of_a_set_stays_while_jobs_live_inside(cell, ann, shelf, web) -> None:
    for indexes in (None, [0, 1]):
        with pytest.raises(Conflict, match="kill web first") as caught:
            submit_and_kill.job_kill(principal=ann, job=shelf, indexes=indexes)
        assert caught.value.figures == {"jobs": ["web"]}
    assert states(shelf) == ["running", "running"]


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"cpu": "50m"}, "job web inside the alloc set would no longer fit"),
        ({"priority": "batch"}, "higher than the priority of alloc set shelf"),
        ({"tasks": 1, "cpu": "250m"}, "0.3 cores of cpu"),
    ],
)
def test_an_alloc_set_does_not_shrink_below_what_lives_inside(cell, ann, shelf, web, changes, what) -> None:
    with pytest.raises(Conflict, match=what) as caught:
        updates.job_update(principal=ann, job=shelf, job_spec=world.read(cell, envelope(**changes)))
    assert caught.value.figures == {"jobs": ["web"]}


def test_a_smaller_set_sends_those_of_its_last_allocs_back_to_the_queue(cell, ann, shelf, web) -> None:
    updates.job_update(principal=ann, job=shelf, job_spec=world.read(cell, envelope(tasks=1)))
    assert states(shelf) == ["running", "dead"]
    assert states(web) == ["running", "running", "pending"]


def test_an_alloc_that_shrinks_below_its_tasks_starts_again_without_them(cell, ann, shelf, web) -> None:
    updates.job_update(principal=ann, job=shelf, job_spec=world.read(cell, envelope(cpu="150m")))
    assert states(shelf) == ["pending", "running"]
    assert states(web) == ["pending", "pending", "running"]


def test_a_task_grows_within_its_alloc_or_leaves_it(cell, ann, shelf, web) -> None:
    world.report(web, 0, 1, 2)
    grown = inside(limit={"cpu": "600m", "ram": "64Mi", "disk": "64Mi"})
    updates.job_update(principal=ann, job=web, job_spec=world.read(cell, grown))
    # In the first alloc, one of two tasks has space to grow. The other one goes back to the queue in its turn.
    assert states(web).count("running") == 2
    limits = Task.objects.filter(job=web, state="running").values_list("limit", flat=True)
    assert [limit[CPU] for limit in limits] == [600, 600]


# -- what interfaces show


def test_every_door_says_where_a_task_lives(cell, tenant, shelf, web) -> None:
    user = world.a_user("ann", tenant=tenant)
    api = world.bearer(user)
    path = "/api/v1/cells/cc/jobs/ubar/web/"
    shown = api.get(path).json()
    assert (shown["kind"], shown["alloc_set"], shown["gang"], shown["disruption_budget"]) == ("job", "shelf", False, 0)
    assert not any(shown["requested"].values())
    tasks = api.get(f"{path}tasks/").json()["results"]
    assert [(task["alloc"], task["devices"]) for task in tasks] == [("shelf/0", []), ("shelf/0", []), ("shelf/1", [])]
    pages = Client()
    pages.force_login(user)
    assert "in the alloc set" in pages.get("/jobs/cc/ubar/web/").text
    assert ">shelf/1</a>" in pages.get("/jobs/cc/ubar/web/2/").text


def test_devices_and_promises_are_shown(cell, tenant, ann, machine) -> None:
    rows.machine_set(machine, capacity={"cpu": 64_000, "ram": 2**38, "disk": 2**42, "accelerators": 4000})
    job = world.submit(
        ann,
        cell,
        world.with_task(tasks=1, limit={"accelerators": 2}) | {"gang": True, "disruption_budget": 1} | {"priority": 0},
    )
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_place(entry, [Assignment(job.id, 0, machine.id, (21_000,), devices=(1, 3))])
    user = world.a_user("ann", tenant=tenant)
    api = world.bearer(user)
    assert api.get("/api/v1/cells/cc/jobs/ubar/web/tasks/0/").json()["devices"] == [1, 3]
    assert api.get("/api/v1/cells/cc/jobs/ubar/web/").json()["disruption_budget"] == 1
    pages = Client()
    pages.force_login(user)
    assert "disruption budget 1" in pages.get("/jobs/cc/ubar/web/").text
    assert "<dd>1, 3</dd>" in pages.get("/jobs/cc/ubar/web/0/").text


# -- the schema


def test_only_what_runs_is_in_an_alloc(cell, shelf, web) -> None:
    for change in ({"alloc_id": task_id(shelf.id, 0)}, {"devices": [0]}):
        with pytest.raises(IntegrityError, match="only_running_in_alloc"), transaction.atomic():
            Task.objects.filter(job=web, index=0).update(state="pending", machine=None, **change)
