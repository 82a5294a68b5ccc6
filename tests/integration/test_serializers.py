"""Tests of REST answers: our faster serializers and JSON encoder answer as those of Django REST framework."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer

from portal.api.rendering import FastJSONRenderer
from quota.vocabulary.permissions import Principal
from scheduling.access import selectors
from scheduling.api.cell_serializers import CellSerializer, MachineSerializer
from scheduling.api.cells import event_names
from scheduling.api.job_serializers import JobSerializer
from scheduling.api.task_serializers import EventSerializer, TaskSerializer
from scheduling.jobs.health import health_of
from scheduling.models import Cell, Event, Job, Machine, Task, Update
from tests.integration.world import a_file, bring_up, submit


def _both(serializer: serializers.ModelSerializer[Any], row: Any) -> tuple[Any, Any]:
    """Return a row as our serializer and encoder answer it, and as Django REST framework's own do, both parsed."""
    slow = serializers.ModelSerializer.to_representation(serializer, row)
    return json.loads(FastJSONRenderer().render(serializer.data)), json.loads(JSONRenderer().render(slow))


@pytest.mark.django_db(transaction=True)
def test_serializers_answer_as_the_framework_would(cell: Cell, machine: Machine, ann: Principal) -> None:
    job = submit(ann, cell, a_file("web", labels={"team": "a"}))
    submit(ann, cell, a_file("other"))
    bring_up(job, machine)
    events = list(Event.objects.filter(cell_id=cell.id))
    tasks = list(selectors.tasks_of(job))
    rows: list[tuple[serializers.ModelSerializer[Any], Any]] = [
        (CellSerializer(row), row) for row in Cell.objects.all()
    ]
    for row in selectors.machines_of(cell):
        rows.append((MachineSerializer(row, context={"extra": ["gpu"]}), row))
    for one in selectors.with_details(Job.objects.all()):
        health_of(one)
        rows.append((JobSerializer(one), one))
    for task in tasks:
        names = {"port_names": selectors.port_names(job, tasks), "allocs": selectors.alloc_names(tasks)}
        context = names | {"maintenance": {}}
        rows.append((TaskSerializer(task, context=context), task))
    rows += [(EventSerializer(event, context=event_names(events)), event) for event in events]
    assert len({type(row) for _, row in rows}) == 5
    assert Task.objects.count() == 6
    for serializer, row in rows:
        quick, slow = _both(serializer, row)
        assert quick == slow, type(row)


@pytest.mark.django_db(transaction=True)
def test_a_job_is_the_same_alone_and_in_a_list(cell: Cell, machine: Machine, ann: Principal) -> None:
    bring_up(submit(ann, cell, a_file("web", labels={"team": "a"})), machine)
    submit(
        ann, cell, a_file("allocs", kind="AllocSet", tasks=1, task={"limit": {"cpu": 2, "ram": "1Gi", "disk": "1Gi"}})
    )
    submit(ann, cell, a_file("inside", alloc_set="allocs"))
    updating = submit(ann, cell, a_file("updating"))
    Update.objects.create(job=updating, from_version=1, to_version=2, actor="ann", max_down=1, max_disruptions=1)
    joined = {job.name: job for job in selectors.with_details(Job.objects.all())}
    cell.refresh_from_db()
    listed = {job.name: job for job in selectors.detailed(cell, list(selectors.jobs_visible(ann, cell)))}
    assert joined.keys() == listed.keys() == {"web", "allocs", "inside", "updating"}
    for name, slow in joined.items():
        alone = selectors.job_named(ann, cell, slow.tenant.name, name)
        answers = [
            json.loads(FastJSONRenderer().render(JobSerializer(one).data)) for one in (slow, listed[name], alone)
        ]
        assert answers[0] == answers[1] == answers[2], name
    assert listed["inside"].alloc_set == joined["allocs"]


@pytest.mark.django_db(transaction=True)
def test_the_answer_to_a_submission_equals_the_job_as_read_again(cell: Cell, ann: Principal) -> None:
    from scheduling.jobs.health import new_with_details
    from tests.integration.world import read

    job = submit(ann, cell, a_file("web"))
    assert new_with_details(job, read(cell, a_file("web")))
    again = selectors.with_details(Job.objects.filter(pk=job.pk)).get()
    quick, slow = (json.loads(FastJSONRenderer().render(JobSerializer(one).data)) for one in (job, again))
    assert quick == slow


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, True, None], "b": "ä\u2028"},
        {"when": dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC), "id": uuid.UUID(int=7), "sum": Decimal("1.50")},
        [mark_safe("<b>"), gettext_lazy("name"), (1, 2), {"1": "x"}],
    ],
)
def test_the_encoder_writes_what_the_frameworks_own_writes(value: Any) -> None:
    quick, slow = FastJSONRenderer().render(value), JSONRenderer().render(value)
    assert json.loads(quick or b"0") == json.loads(slow or b"0")
