"""Tests of answers to "why" in every interface: reasons of pending tasks, and receipts of placements."""

from __future__ import annotations

import msgspec
import pytest
from django.utils.html import strip_tags

from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.jobs import why
from scheduling.journal import journal
from scheduling.models import Cell, Job, PendingVerdict, Task
from scheduling.tasks import pending_verdicts, transitions
from tests.integration import portal_world, rows, world
from tests.integration.simulated_cell import SimulatedCell

pytestmark = pytest.mark.django_db(transaction=True)
JOBS = "/api/v1/cells/cc/jobs"


@pytest.fixture
def cell() -> Cell:
    return rows.a_cell()


@pytest.fixture
def ann(cell):
    return world.bearer(world.a_user("ann", tenant=rows.a_tenant("ubar")))


@pytest.fixture
def sre(cell):
    return world.bearer(world.a_user("root", sre=True))


def judged(cell: Cell) -> None:
    """Run a scheduling pass and store its verdicts, without its placements."""
    pending_verdicts.store(cell.id, SimulatedCell(cell).decide())


def place(job: Job, index: int, machine_id: int, **more: object) -> None:
    with journal.write(job.cell_id, rows.ME) as entry:
        placed = Assignment(job.id, index, machine_id, **more)  # type: ignore[arg-type]
        assert transitions.tasks_place(entry, [placed])


def preempted(cell: Cell) -> tuple[Job, Job]:
    """Preempt a batch job of tenant ubar for a production job of tenant other. Return both jobs in this order."""
    machine, spare = rows.a_machine(cell, "m1"), rows.a_machine(cell, "m2")
    victim = rows.a_job(cell, rows.a_tenant("ubar"), "batch", tasks=1, priority=110)
    urgent = rows.a_job(cell, rows.a_tenant("other"), "urgent", tasks=1, priority=200)
    place(victim, 0, machine.id)
    loser, winner = task_id(victim.id, 0), task_id(urgent.id, 0)
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(loser, 1, "preemption", detail="for urgent", preemptor=winner)])
        transitions.tasks_place(
            entry,
            [
                Assignment(
                    urgent.id,
                    0,
                    machine.id,
                    score={"packing": -0.25, "preemption": -10.5},
                    victims=((victim.id, 0),),
                    runners_up=((spare.id, -11.0),),
                )
            ],
        )
    return victim, urgent


def test_a_pending_class_is_one_object_with_all_that_is_known(ann, cell) -> None:
    rows.a_machine(cell, "m1", capacity=(4000, 2**30, 2**34, 0, 0, 10))
    rows.a_job(cell, rows.a_tenant("ubar"), "web", limit=(6000, 2**26, 2**26, 0, 0, 1))
    judged(cell)
    (verdict,) = ann.get(f"{JOBS}/ubar/web/why/").json()["verdicts"]
    assert (verdict["code"], verdict["tasks"], verdict["never"]) == ("resource", 3, True)
    assert verdict["nearest"] == {
        "machine": "m1",
        "lacks": [{"resource": "cpu", "left": 4000, "short": 2000}],
        "fails": [],
        "bounds": [],
    }
    (change,) = verdict["changes"]
    assert (change["kind"], change["subject"], change["to"], change["machines"]) == ("lower", "cpu", 4000, 1)
    assert verdict["shapes"]["one_more"]["limit"]["cpu"] == 4000
    assert verdict["expected"]["basis"] == "needs-change"
    assert verdict["told"]["summary"] == "3 tasks can't be placed on any of 1 machine"
    task = ann.get(f"{JOBS}/ubar/web/why/?index=1").json()
    assert task["verdicts"] == [verdict]
    assert task["sentences"][0].startswith(verdict["told"]["summary"])


def test_the_owner_of_tasks_ahead_is_shown_to_those_who_may_know(ann, sre, cell) -> None:
    rows.a_machine(cell, "m1", capacity=(100, 2**20, 2**20, 0, 0, 10))
    rows.a_job(cell, rows.a_tenant("other"), "first", priority=300)
    rows.a_job(cell, rows.a_tenant("ubar"), "mine", tasks=2, priority=210)
    rows.a_job(cell, rows.a_tenant("ubar"), "web", priority=200)
    judged(cell)
    path = f"{JOBS}/ubar/web/why/"
    (mine,) = ann.get(path).json()["verdicts"]
    assert (mine["ahead"], mine["ahead_tenants"]) == (5, 2)
    assert [(one["tenant"], one["tasks"]) for one in mine["ahead_of"]] == [("", 3), ("ubar", 2)]
    assert "other" not in ann.get(path).text
    assert "5 tasks are ahead in the queue, from 2 tenants (ubar 2)." in ann.get(path).json()["sentences"]
    (all_of_it,) = sre.get(path).json()["verdicts"]
    assert [one["tenant"] for one in all_of_it["ahead_of"]] == ["other", "ubar"]


def test_a_placement_has_a_receipt(sre, cell) -> None:
    preempted(cell)
    told = sre.get(f"{JOBS}/other/urgent/why/?index=0").json()
    placement = told["placement"]
    assert (placement["machine"], placement["total"]) == ("m1", -10.75)
    assert placement["runners_up"] == [{"machine": "m2", "score": -11.0}]
    assert placement["victims"] == [{"job": "ubar/batch", "index": 0, "priority": 110, "band": "batch"}]
    assert told["score"] == placement["score"]
    assert "Its total score is -10.8. The next best machines: m2 -11." in told["sentences"]
    assert "It preempted 1 task there: ubar/batch/0 (priority 110, batch)." in told["sentences"]


def test_a_victim_hears_by_whom_and_no_more_than_it_may(ann, sre, cell) -> None:
    preempted(cell)
    path = f"{JOBS}/ubar/batch/why/?index=0"
    told = ann.get(path).json()
    assert told["preempted"]["machine"] == "m1"
    assert told["preempted"]["by"] == {"job": None, "index": None, "priority": 200, "band": "production"}
    assert any("preempted on m1 by a task of priority 200 (production)" in line for line in told["sentences"])
    assert "urgent" not in str(told["sentences"])
    assert sre.get(path).json()["preempted"]["by"]["job"] == "other/urgent"


def test_the_task_page_shows_the_receipts(cell) -> None:
    victim, urgent = preempted(cell)
    portal_world.person("boss", is_staff=True, is_superuser=True)
    boss = portal_world.signed_in("boss")
    page = boss.get(f"/jobs/cc/other/{urgent.name}/0/").text
    for part in (
        "Why the task is on this machine",
        "packing",
        "-10.750",
        "Next best machine",
        "m2",
        "To place this task, the scheduler preempted 1 task",
        "ubar/batch/0",
    ):
        assert part in page, part
    page = boss.get(f"/jobs/cc/ubar/{victim.name}/0/").text
    assert "was preempted on m1" in strip_tags(page)
    assert "other/urgent/0" in page
    assert "Why the task is pending" in page


def test_a_placement_that_was_lost_is_not_a_reason_any_more(ann, cell) -> None:
    victim, _ = preempted(cell)
    told = ann.get(f"{JOBS}/ubar/batch/why/?index=0").json()
    assert (told["state"], told["placement"], told["score"]) == ("pending", None, None)
    place(victim, 0, rows.a_machine(cell, "m3").id, score={"packing": -0.5})
    told = ann.get(f"{JOBS}/ubar/batch/why/?index=0").json()
    assert told["placement"]["machine"] == "m3"
    assert told["preempted"]["machine"] == "m1", "its history stays"


def test_the_number_of_queries_depends_on_no_number_of_victims(cell, django_assert_max_num_queries) -> None:
    _, urgent = preempted(cell)
    task = Task.objects.select_related("machine").get(job=urgent)
    with django_assert_max_num_queries(4):
        why.explain_task(urgent, task, rows.ME)


def test_a_verdict_of_an_earlier_release_is_still_told(ann, cell) -> None:
    job = rows.a_job(cell, rows.a_tenant("ubar"), "web")
    rows.a_machine(cell, "m1", capacity=(10, 2**20, 2**20, 0, 0, 10))
    plan = SimulatedCell(cell).decide()
    (new,) = msgspec.to_builtins(plan.unplaced)
    old = {key: new[key] for key in ("tasks", "machines", "ruled_out", "never", "ahead")}
    old["changes"] = [{"subject": "gpu", "to": "any value", "machines": 1}]
    job.refresh_from_db()
    job.verdict = PendingVerdict(job=job, revision=1, whys=[old])
    assert "with the constraint gpu removed" in why.job_sentences(_detailed(job))[1]


def test_a_task_whose_machine_vanished_is_not_shown_as_up(ann, cell) -> None:
    machine, job = rows.a_machine(cell, "m1"), rows.a_job(cell, rows.a_tenant("ubar"), "web")
    place(job, 0, machine.id)
    portal_world.report(job, 0)
    machine.state, machine.reason = MachineStatus.DOWN.value, "not heard of for more than 12 s"
    machine.save()
    told = ann.get(f"{JOBS}/ubar/web/why/?index=0").json()["sentences"]
    assert "m1, which is down: not heard of for more than 12 s. Whether the task still runs there is unknown" in told[0]


def test_an_end_without_a_status_shows_none(ann, cell) -> None:
    job = rows.a_job(cell, rows.a_tenant("ubar"), "web")
    Task.objects.filter(job=job, index=0).update(exit={"cause": "start-failed", "detail": "network: none"})
    told = ann.get(f"{JOBS}/ubar/web/why/?index=0").json()["sentences"]
    assert "Its last end: start-failed, network: none." in told


def _detailed(job: Job) -> Job:
    job.open_updates = []  # type: ignore[attr-defined]
    return job
