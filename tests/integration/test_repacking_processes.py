"""A re-packing that a real master runs and another one continues, after the first was killed half-way."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from scheduling.models import Machine, Repacking, RepackingStep, Task
from tests.integration import cli_world, master_processes, repack_rows
from tests.integration.repack_rows import answer, on, scattered

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_S = 120.0


def wait_for(cell, condition: Callable[[], bool]) -> None:
    """Answer for the machines until the condition holds."""
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "it never happened"
        answer(cell)
        time.sleep(0.05)


def test_a_killed_master_leaves_a_re_packing_that_the_next_one_ends(cell, ann, tmp_path, shared_portal) -> None:
    """An SRE plans and starts it with borgctl, and returns its machines."""
    sre = cli_world.of(tmp_path, shared_portal, "sre", sre=True)
    job, _ = scattered(ann, cell, machines=8, disruption_budget=2)
    with master_processes.running(tmp_path, "cc") as (first,):
        goal = ("--share", "50%", "--job-share", "100%", "--at-once", "2", "--reason", "give some back")
        shown = sre.out("repack", "plan", *goal)
        row = Repacking.objects.get()
        assert f"Re-packing {row.pk} of cell cc is planned: 4 machines are free after the moves" in shown
        assert "ubar/web: 8 of 16 tasks move (2 may be down at once)" in shown
        assert f"borgctl repack start {row.pk}" in shown
        assert "was not confirmed" in sre.run("repack", "start", str(row.pk), given="n\n").stderr
        assert sre.out("repack", "start", str(row.pk), "--yes") == f"Re-packing {row.pk} is running.\n"
        freed = row.steps.filter(state=RepackingStep.FREED)
        wait_for(cell, lambda: freed.exists())
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert row.steps.filter(state__in=(RepackingStep.WAITING, RepackingStep.MOVING)).exists(), "half of the way"
    with master_processes.running(tmp_path, "cc"):
        wait_for(cell, lambda: not row.refresh_from_db() and row.state != "running")
    assert (row.state, row.detail) == ("done", "4 machines are free")
    assert "4 of 4" in sre.out("repack", "status")
    assert {step["state"] for step in sre.json("repack", "status", str(row.pk))["steps"]} <= {"freed", "spare"}
    freeing = [step.machine for step in freed]
    assert [on(machine) for machine in freeing] == [0] * 4
    assert {Machine.objects.get(pk=machine.pk).state for machine in freeing} == {"draining"}
    assert repack_rows.evictions(cell) == dict.fromkeys(repack_rows.planned(row), 1), "each task moved once"
    job.refresh_from_db()
    assert repack_rows.most_down(cell, job) == 2
    assert Task.objects.filter(job=job, state="running", up=True).count() == 16
    assert sre.failing("repack", "stop", str(row.pk))[1]["code"] == "repacking-ended"
    assert sre.out("repack", "release", str(row.pk)) == f"Re-packing {row.pk} is released.\n"
    assert {machine.state for machine in Machine.objects.all()} == {"up"}
    assert sre.failing("repack", "plan", "--share", "much", "--reason", "x", status=2)[1]["fields"]
    assert sre.failing("repack", "plan", "--machines", "99", "--reason", "x")[1]["fields"]["machines"]
