"""Tests of jobs whose tasks have a known end: checks, copies and drains treat them as other jobs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from django.core.management import call_command
from django.utils import timezone

from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.states import Observation
from scheduling.history.checkpoints.rows import read_cell
from scheduling.history.checkpoints.saving import checkpoint_write
from scheduling.history.studies.studies import study_import
from scheduling.journal import journal
from scheduling.models import Cell, Job, Task
from scheduling.tasks import reported_states
from tests.integration import world
from tests.integration.test_studies import packed

pytestmark = pytest.mark.django_db(transaction=True)
SRE = system("sre")


@pytest.fixture(autouse=True)
def home(settings, tmp_path: Path) -> None:
    settings.BORG_HOME = tmp_path
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()


@pytest.fixture
def limited(cell, ann) -> Job:
    job = world.submit(ann, cell, world.with_task("limited", tasks=2, max_run_s=600, restart={"on": "never"}))
    assert job.ends_within_s is not None
    return job


def test_validate_agrees_after_tasks_came_up_since_the_checkpoint(cell, machine, limited) -> None:
    world.place(limited, machine, 0, 1)
    checkpoint_write(cell.id)
    world.report(limited, 0, 1)
    world.report(limited, 0, up=False)
    call_command("validate", cell.name)
    call_command("validate", cell.name, "--whole-journal")


def test_a_study_cell_is_made_of_running_tasks_with_a_known_end(cell, machine, limited) -> None:
    world.bring_up(limited, machine)
    study = study_import(principal=SRE, source=packed(*read_cell(cell.id)), into="copy")
    assert Job.objects.get(cell=study.cell).ends_within_s == limited.ends_within_s


def test_a_checkpoint_of_an_earlier_version_is_imported(cell, machine, ann) -> None:
    world.bring_up(world.submit(ann, cell, world.a_file()), machine)
    header, tables = read_cell(cell.id)
    later = ["start_after", "max_run_s", "ends_within_s"]
    tables = {**tables, "jobs": tables["jobs"].drop(later), "tasks": tables["tasks"].drop(["up"])}
    study = study_import(principal=SRE, source=packed(header, tables), into="copy")
    copy = Job.objects.get(cell=study.cell)
    assert (copy.start_after, copy.max_run_s, copy.ends_within_s) == (None, None, None)


@pytest.mark.parametrize("name", ["web", "limited"])
def test_a_task_that_is_stopped_to_be_started_again_is_down_from_now_on(cell, machine, ann, limited, name) -> None:
    """Disruption budgets count such a task as down. A task with a known end keeps its time until it has ended."""
    job = limited if name == "limited" else world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    long_ago = timezone.now() - dt.timedelta(hours=1)
    Task.objects.filter(job=job).update(since=long_ago)
    task = Task.objects.get(job=job, index=0)
    with journal.write(Cell.objects.get().id, SRE) as entry:
        seen = Observation(task.id, task.incarnation, "stopping", "unhealthy", up=False, restarts=0)
        reported_states.tasks_observe(entry, [seen])
    task.refresh_from_db()
    assert (task.since == long_ago) == (name == "limited")
