"""The example of a gang with backfill, with a real Borglet and a real master."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from portal.cli import jobfile
from quota.vocabulary.permissions import system
from scheduling.access.selectors import job_named
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary.policy import Policy
from scheduling.jobs.why import explain_job, job_sentences
from scheduling.machines.joining import join_token_issue
from scheduling.master.loop import Master
from scheduling.models import Event, Job, Machine, Task
from scheduling.spec.job_spec import REPORT_S
from tests.integration import master_processes, world
from tests.integration.link_world import running_link, until
from tests.integration.real_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)
LIMIT_S, NOTICE_S = 60.0, 12.0


def test_short_tasks_run_before_a_gang_starts_and_do_not_delay_it(cell, ann, tenant, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    gang_file = jobfile.read("examples/gang-with-backfill.yaml")
    gap_file = jobfile.read("examples/gang-gap.yaml")
    with (
        running_link() as link,
        master_processes.running(tmp_path, cell.name),
        contextlib.closing(Borglet(tmp_path / "home", link)) as borglet,
    ):
        borglet.start(join_token_issue(principal=system("test"), cell=cell))
        machine = until(lambda: Machine.objects.filter(session__gt=0).first(), what="connected")
        follower = Master(cell.id)
        follower.prepare()
        stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
        sleep = gap_file["task"] | {"command": stubborn}
        base = {"limit": {"cpu": f"{machine.capacity[0] - 900}m", "ram": "32Mi"}, "max_run_s": None}
        _submit(ann, cell, gap_file, "base", sleep | base, tasks=1)
        limited = {"limit": {"cpu": "500m", "ram": "32Mi"}, "max_run_s": LIMIT_S, "notice_s": NOTICE_S}
        before = _submit(ann, cell, gap_file, "before", sleep | limited, tasks=1)
        until(lambda: Task.objects.filter(job=before, up=True).exists(), what="the machine is full")
        gang = world.submit(ann, cell, gang_file)
        endless = _submit(ann, cell, gap_file, "endless", gap_file["task"] | {"max_run_s": None}, tasks=2)
        gap = world.submit(ann, cell, gap_file)
        until(lambda: not Job.objects.exclude(state="dead").filter(pk=gap.pk).exists(), what="the gap job ends")
        assert not Task.objects.filter(job_id__in=(gang.id, endless.id), state="running").exists()
        until(lambda: "expected to start together at" in _why(ann, cell, gang), what="the booking is explained")
        up_at = Task.objects.get(job=before).since.timestamp()
        follower._advance()
        booked_at = round(up_at + LIMIT_S + NOTICE_S + REPORT_S, 6)
        # From the journal and from rows, masters compute the same booking.
        assert _bookings(follower) == _bookings(Master(cell.id)) == [(gang.id, booked_at)]
        assert "expected to start together at" in " ".join(job_sentences(job_named(ann, cell, "ubar", gang.name)))
        until(lambda: "is booked for a gang" in _why(ann, cell, endless), what="the other job is explained")
        until(lambda: Task.objects.filter(job=gang, state="dead").count() == 4, what="the gang ran", seconds=200)
    placed = Task.objects.filter(job=gang)
    started = Event.objects.filter(kind="task.placed", job_id=gang.id).values_list("time", flat=True)
    # The task's run began before its report, and it ended after its notice.
    assert [booked_at - NOTICE_S < at.timestamp() <= booked_at for at in started] == [True] * 4
    assert {task.outcome for task in placed} == {"finished"}
    assert Task.objects.get(job=before).outcome == "failed"
    filled = list(Task.objects.filter(job=gap))
    assert [task.outcome for task in filled] == ["finished"] * 2, [task.exit for task in filled]


def _submit(who, cell, file, name, task, *, tasks) -> Job:
    task = {key: value for key, value in task.items() if value is not None}
    return world.submit(who, cell, file | {"name": name, "tasks": tasks, "task": task})


def _why(who, cell, job) -> str:
    return " ".join(explain_job(job_named(who, cell, "ubar", job.name), who).sentences)


def _bookings(master: Master) -> list[tuple[int, float]]:
    """Return (job id, time) of the bookings that another master computes."""
    state = master._warm()
    now = float(state.tasks.since.max()) + 1.0
    plan = schedule_pass(state, Policy(), now=now, rng=np.random.default_rng(1))
    return [(booking.job_id, round(booking.at, 6)) for booking in plan.bookings]
