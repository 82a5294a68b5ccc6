"""The example of an array: 1,000 tasks of which at most 50 run at once, with real masters and simulated machines."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from django.utils import timezone

from portal.cli import jobfile
from scheduling.access.selectors import job_named
from scheduling.jobs import updates
from scheduling.jobs.why import job_sentences
from scheduling.master.queue_health import queues
from scheduling.models import Event, Job, Task
from tests.integration import master_processes, rows, world
from tests.integration.fleets import fleet
from tests.integration.link_world import running_link, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]
TOLD = "At most 50 tasks of the job run at once (max_running). The others wait until one of these ends."


def test_of_a_thousand_tasks_never_more_than_fifty_run_at_once(cell, ann, tmp_path: Path) -> None:
    """Run the whole array. One master is killed meanwhile, and a standby takes over."""
    file = jobfile.read("examples/array.yaml")
    file["task"]["env"] = {"SIM_DURATION_S": "0.1"}
    hostnames = [f"s{number}" for number in range(20)]
    with (
        running_link() as link,
        fleet(tmp_path, link, cell, hostnames),
        master_processes.running(tmp_path, cell.name, cell.name) as masters,
    ):
        job = world.submit(ann, cell, file)
        until(lambda: Task.objects.filter(job=job, state="dead").count() >= 200, what="200 tasks ended", seconds=300)
        masters[0].kill()
        until(lambda: Job.objects.get(pk=job.pk).state == "dead", what="all tasks ended", seconds=400)
    most, outcomes = history(job)
    assert (most, outcomes) == (50, ["finished"] * 1000)
    assert Job.objects.get(pk=job.pk).outcome == "finished"


def history(job: Job) -> tuple[int, list[str]]:
    """Return the largest number of tasks that had a machine at once, and how the tasks ended, from the journal."""
    running: set[int] = set()
    most, outcomes = 0, []
    about = Event.objects.filter(job_id=job.id, kind__in=["task.placed", "task.evicted", "task.ended"])
    for kind, index, data in about.order_by("revision", "seq").values_list("kind", "task_index", "data"):
        if kind == "task.placed":
            running.add(index)
        else:
            running.discard(index)
        if kind == "task.ended":
            outcomes.append(data["how"])
        most = max(most, len(running))
    return most, outcomes


def test_a_full_job_is_explained_and_does_not_starve(cell, ann, tenant) -> None:
    machine = rows.a_machine(cell)
    job = world.submit(ann, cell, world.a_file(tasks=60, max_running=50))
    world.place(job, machine, *range(50))
    assert TOLD in job_sentences(job_named(ann, cell, "ubar", "web"))
    assert queues(cell.id) == []
    client = world.bearer(world.a_user("ann"), tenant=tenant)
    assert client.get(f"/api/v1/cells/{cell.name}/jobs/ubar/web/").json()["max_running"] == 50

    Task.objects.filter(job=job).update(since=timezone.now() - dt.timedelta(days=2))
    more = world.read(cell, world.a_file(tasks=60, max_running=55))
    updates.job_update(principal=ann, job=Job.objects.select_related("cell", "tenant").get(pk=job.pk), job_spec=more)
    (queue,) = queues(cell.id)
    assert (queue.jobs, queue.tasks) == (1, 5)
    assert queue.oldest_s < 60.0  # since the change of the bound
    assert Task.objects.filter(job=job, state="running").count() == 50  # a change of the bound restarts no task


def test_a_rolling_update_changes_the_running_tasks_too(cell, ann) -> None:
    machine = rows.a_machine(cell)
    job = world.submit(ann, cell, world.a_file(tasks=30, max_running=4, update={"max_down": 2}))
    world.place(job, machine, *range(4))
    world.report(job, *range(4))
    changed = world.with_task(tasks=30, command=["serve", "--faster"]) | {"max_running": 4, "update": {"max_down": 2}}
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, changed))
    assert Task.objects.filter(job=job, state="running", up=True).count() == 2
    assert Task.objects.filter(job=job, state="pending", spec_version=2).count() == 28
