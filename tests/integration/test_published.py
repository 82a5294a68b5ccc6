"""Tests of how a job's names are published (weights, time to live): row and journal agree, with effect at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from naming.following.names_from_database import snapshot as names_of
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from scheduling.jobs import submit_and_kill, updates
from scheduling.journal import journal
from scheduling.master import snapshot
from scheduling.models import Cell, Departure, Job, Task
from tests.integration import world

pytestmark = pytest.mark.django_db(transaction=True)

CANARY = world.a_file(names={"ttl_s": 60}, overrides={"0": {"weight": 0}})
WEIGHED = Published(60, ((0, 0, 0),))


def update(who: Any, job: Job, file: dict[str, Any]) -> updates.JobChange:
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    return updates.job_update(principal=who, job=job, job_spec=world.read(job.cell, file))


def reported(cell: Cell) -> dict[int, Published]:
    """Return how names are published according to the journal, by id of the job."""
    known = {}
    for record in journal.tail(cell.id, after=0):
        if isinstance(record.event, events.JobSubmitted | events.JobChanged):
            known[record.event.job_id] = record.event.published
    return known


def from_rows(cell: Cell) -> dict[int, Published]:
    """Return how names are published according to rows, by id of the job. Resolver and master must read the same."""
    started = [event for event in names_of(cell.id).events if isinstance(event, events.JobSubmitted)]
    known = {event.job_id: event.published for event in started}
    assert {job.id: msgspec.convert(job.published, Published) for job in Job.objects.all()} == known
    masters = [event for event, _ in snapshot.take(cell.id).events if isinstance(event, events.JobSubmitted)]
    assert {event.job_id: event.published for event in masters} == known
    return known


def test_rows_and_journal_say_the_same_at_submission_update_and_undo(cell, machine, ann) -> None:
    plain = world.submit(ann, cell, world.a_file("plain"))
    job = world.submit(ann, cell, CANARY)
    assert reported(cell) == from_rows(cell) == {plain.id: Published(), job.id: WEIGHED}
    assert Job.objects.get(pk=plain.pk).published == {}
    world.bring_up(job, machine)

    heavy = Published(0, ((0, 2, 9),))
    update(ann, job, world.with_task(weight=9))
    assert reported(cell)[job.id] == from_rows(cell)[job.id] == heavy
    updates.job_undo(principal=ann, job=Job.objects.select_related("cell", "tenant").get(pk=job.pk))
    assert reported(cell)[job.id] == from_rows(cell)[job.id] == WEIGHED
    assert world.versions(job) == [3, 3, 3]
    assert Task.objects.filter(job=job, up=True, incarnation=1).count() == 3
    assert not Departure.objects.exists()


def test_weights_are_in_force_at_once_while_tasks_follow_one_by_one(cell, machine, ann) -> None:
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    update(ann, job, world.with_task(weight=9, command=["other"]) | {"names": {"ttl_s": 1}})
    assert world.versions(job) == [2, 1, 1]
    assert reported(cell)[job.id] == from_rows(cell)[job.id] == Published(1, ((0, 2, 9),))


def test_many_at_once_and_inside_alloc_sets(cell, ann) -> None:
    box = {
        "name": "box",
        "kind": "AllocSet",
        "priority": "production",
        "tasks": 3,
        "task": {"limit": {"cpu": "500m", "ram": "1Gi", "disk": "1Gi"}},
    }
    inner = CANARY | {"name": "inner", "alloc_set": "box"}
    done = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=[box, CANARY, inner], tenant="ubar")
    assert [verdict.outcome for verdict in done] == ["submitted"] * 3
    assert reported(cell) == from_rows(cell)
    assert sorted(reported(cell).values(), key=repr) == [Published(), WEIGHED, WEIGHED]
