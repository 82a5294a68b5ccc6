"""Tests that `manage.py validate` finds changed, missing and additional rows of ended jobs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from quota.vocabulary.permissions import Principal, system
from scheduling.core.vocabulary.requirement import task_id
from scheduling.history.checkpoints.saving import checkpoint_write
from scheduling.jobs import submit_and_kill
from scheduling.journal import journal
from scheduling.journal.sql import execute
from scheduling.master.invariants import row_problems, validate
from scheduling.models import Cell, Job, Machine
from scheduling.tasks import departures
from tests.integration import world

pytestmark = pytest.mark.django_db(transaction=True)
SRE = system("sre")


@pytest.fixture(autouse=True)
def home(settings, tmp_path: Path) -> None:
    settings.BORG_HOME = tmp_path
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()


@pytest.fixture
def ended(cell, machine, ann) -> Job:
    """Return an ended job of three tasks. One of them was placed before it ended."""
    return _end_a_job(cell, machine, ann, "web")


@pytest.fixture
def broken(ended) -> Iterator[Callable[[str], None]]:
    """Yield a function that runs an SQL statement with `%(job)s` as the id of the job. All is undone afterwards, so
    that the fixture `cell` finds consistent rows.
    """
    with transaction.atomic():
        execute("SET LOCAL session_replication_role = replica")  # foreign keys are not checked
        yield lambda statement: execute(statement, {"job": ended.id})
        transaction.set_rollback(True)


def _end_a_job(cell: Cell, machine: Machine, ann: Principal, name: str) -> Job:
    job = world.submit(ann, cell, world.with_task(name, tasks=3))
    world.place(job, machine, 0)
    submit_and_kill.job_kill(principal=ann, job=job, reason="a test")
    with journal.write(cell.id, SRE) as entry:
        departures.tasks_gone(entry, [(task_id(job.id, 0), 1, None)])
    job.refresh_from_db()
    assert job.state == "dead"
    return job


TASK = "scheduling_task WHERE job_id = %(job)s AND index = 1"
FOUND_BY_COUNTERS = {
    "changed state of a task": (
        f"UPDATE {TASK.replace('WHERE', 'SET state = $$pending$$ WHERE')}",
        "job ubar/web (id {id}) counts",
    ),
    "missing task": (f"DELETE FROM {TASK}", "job ubar/web (id {id}) counts"),
    "additional task": (
        "INSERT INTO scheduling_task SELECT"
        " (jsonb_populate_record(t, jsonb_build_object('id', t.id + 7, 'index', 8))).*"
        " FROM scheduling_task AS t WHERE job_id = %(job)s AND index = 1",
        "job ubar/web (id {id}) counts",
    ),
    "changed counter": (
        "UPDATE scheduling_job SET tasks_total = 4 WHERE id = %(job)s",
        "job ubar/web (id {id}) counts",
    ),
}
FOUND_BY_EVENTS = {
    "changed outcome of a job": (
        "UPDATE scheduling_job SET outcome = 'finished' WHERE id = %(job)s",
        "job ubar/web (id {id}) ended (killed), but its row says dead (finished)",
    ),
    "missing job": (
        "WITH t AS (DELETE FROM scheduling_task WHERE job_id = %(job)s) DELETE FROM scheduling_job WHERE id = %(job)s",
        "job with id {id} ended (killed), but its row is missing, and the archive does not contain it",
    ),
    "additional job": (
        "WITH t AS (INSERT INTO scheduling_task SELECT (jsonb_populate_record(t, jsonb_build_object("
        "'id', t.id + (1000000::bigint << 20), 'job_id', t.job_id + 1000000))).*"
        " FROM scheduling_task AS t WHERE job_id = %(job)s)"
        " INSERT INTO scheduling_job SELECT (jsonb_populate_record(j, jsonb_build_object('id', j.id + 1000000,"
        " 'uid', gen_random_uuid(), 'name', 'ghost'))).* FROM scheduling_job AS j WHERE id = %(job)s",
        "the row of job ubar/ghost (id {ghost}) says that it ended (killed), but the journal has no such event",
    ),
    "changed outcome of a task": (
        f"UPDATE {TASK.replace('WHERE', 'SET outcome = $$finished$$ WHERE')}",
        "task 1 of ended job ubar/web (id {id}) ended (killed) in incarnation 0, but its row says dead (finished),"
        " incarnation 0",
    ),
    "changed incarnation of a task": (
        f"UPDATE {TASK.replace('WHERE', 'SET incarnation = 5 WHERE')}",
        "task 1 of ended job ubar/web (id {id}) ended (killed) in incarnation 0, but its row says dead (killed),"
        " incarnation 5",
    ),
    "missing task and counter": (
        f"WITH t AS (DELETE FROM {TASK}) UPDATE scheduling_job SET tasks_total = 2, tasks_dead = 2 WHERE id = %(job)s",
        "task 1 of ended job ubar/web (id {id}) ended (killed) in incarnation 0, but its row is missing",
    ),
}


@pytest.mark.parametrize("change", [*FOUND_BY_COUNTERS, *FOUND_BY_EVENTS])
def test_validate_finds_a_changed_row_of_an_ended_job(cell, ended, broken, change) -> None:
    """`--ended-jobs` finds all of these changes. `broken` needs a transaction, so the test calls a part of
    `validate`.
    """
    statement, expected = (FOUND_BY_COUNTERS | FOUND_BY_EVENTS)[change]
    assert row_problems(cell.id, after=0) == []
    broken(statement)
    expected = expected.format(id=ended.id, ghost=ended.id + 1_000_000)
    assert any(expected in problem for problem in row_problems(cell.id, after=0)), change


def test_the_command_says_which_ended_jobs_it_checked(cell, machine, ann, ended) -> None:
    def run(*arguments: str) -> str:
        out = io.StringIO()
        call_command("validate", cell.name, *arguments, stdout=out, stderr=out)
        return out.getvalue()

    assert "ended" not in run(), "without a checkpoint, all ended jobs are checked"
    checkpoint_write(cell.id)
    cell.refresh_from_db()
    later = _end_a_job(cell, machine, ann, "later")
    assert f"jobs that ended at or before revision {cell.revision} (the newest checkpoint) were not checked" in run()
    assert "ended" not in run("--ended-jobs")
    jobs = Job.objects.filter(pk__in=[ended.id, later.id])
    for change, undo in ({"outcome": "finished"}, {"outcome": "killed"}), ({"tasks_up": 1}, {"tasks_up": 0}):
        jobs.update(**change)
        with pytest.raises(CommandError, match="1 invariants are broken"):
            run()
        for option in ("--ended-jobs", "--whole-journal"):
            with pytest.raises(CommandError, match="2 invariants are broken"):
                run(option)
        jobs.update(**undo)


def test_a_job_that_ended_in_the_first_revision_after_the_checkpoint_is_checked(cell, ann, ended) -> None:
    job = world.submit(ann, cell, world.with_task("next", tasks=2))
    cell.refresh_from_db()
    before = cell.revision
    submit_and_kill.job_kill(principal=ann, job=job, reason="a test")
    cell.refresh_from_db()
    assert cell.revision == before + 1
    Job.objects.filter(pk=job.id).update(tasks_total=5)
    assert row_problems(cell.id, after=before) == [
        f"job ubar/next (id {job.id}) counts (5, 0, 0, 2, 0) (total, pending, running, dead, up); its rows are"
        " (2, 0, 0, 2, 0)",
        f"job ubar/next (id {job.id}) is dead with live tasks, or alive without",
    ]
    assert row_problems(cell.id, after=before + 1) == []
    Job.objects.filter(pk=job.id).update(tasks_total=2)


def test_a_clock_that_was_set_back_gives_no_false_alarm(cell, ann, ended, broken) -> None:
    broken("UPDATE scheduling_job SET ended_at = ended_at + interval '45 s' WHERE id = %(job)s")
    cell.refresh_from_db()
    world.submit(ann, cell, world.with_task("next", tasks=2))
    assert row_problems(cell.id, after=cell.revision) == []
    assert row_problems(cell.id, after=0) == []


@pytest.mark.parametrize("state", ["pending", "running"])
def test_a_live_task_of_a_job_that_ended_long_ago_is_found(cell, machine, ended, broken, state) -> None:
    where = "NULL" if state == "pending" else str(machine.id)
    broken(f"UPDATE {TASK.replace('WHERE', f'SET state = $${state}$$, machine_id = {where} WHERE')}")
    found = f"task 1 of job ubar/web (id {ended.id}) is {state}, but the job has ended"
    assert found in row_problems(cell.id, after=cell.revision + 1_000)


def test_only_the_first_sentences_of_a_kind_are_listed(cell, machine, ann, broken) -> None:
    many = world.submit(ann, cell, world.with_task("many", tasks=23))
    submit_and_kill.job_kill(principal=ann, job=many, reason="a test")
    broken(f"UPDATE scheduling_task SET outcome = 'finished' WHERE job_id = {many.id}")
    found = [problem for problem in row_problems(cell.id, after=0) if "many" in problem or "more" in problem]
    assert len(found) == 21
    assert found[-1] == "and 3 more like the last one"


def test_a_job_that_is_only_in_the_archive_is_not_missing(cell, ended, broken) -> None:
    broken(
        "INSERT INTO scheduling_archivedjob (id, uid, cell_id, tenant_id, name, kind, priority, latency_sensitive,"
        " labels, outcome, created_at, ended_at, file_id) SELECT id, uid, cell_id, tenant_id, name, kind, priority,"
        " latency_sensitive, labels, outcome, created_at, ended_at, 1 FROM scheduling_job WHERE id = %(job)s"
    )
    broken(FOUND_BY_EVENTS["missing job"][0])
    assert row_problems(cell.id, after=0) == []


def test_the_number_of_statements_does_not_depend_on_the_number_of_ended_jobs(cell, machine, ann, ended) -> None:
    with CaptureQueriesContext(connection) as first:
        assert validate(cell.id) == []
    for number in range(5):
        _end_a_job(cell, machine, ann, f"more{number}")
    with CaptureQueriesContext(connection) as second:
        assert validate(cell.id) == []
    assert len(second) == len(first)
