"""The example of a time limit, with a real Borglet that is killed and started again while the task runs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from portal.cli import jobfile
from scheduling.machines.joining import join_token_issue
from scheduling.models import Machine
from tests.integration import rows
from tests.integration.link_world import a_job, place, running_link, task, until
from tests.integration.real_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_task_ends_at_its_time_limit_although_its_borglet_was_restarted(tmp_path: Path) -> None:
    cell = rows.a_cell()
    tmp_path.chmod(0o711)
    with running_link() as link, contextlib.closing(Borglet(tmp_path / "home", link)) as borglet:
        borglet.start(join_token_issue(principal=rows.ME, cell=cell))
        machine = until(lambda: Machine.objects.filter(session__gt=0).first(), what="connected")
        job = a_job(cell, ports=[], **jobfile.read("examples/time-limit.yaml")["task"])
        place(job, machine.id)
        placed_at = task(job).since.timestamp()
        until(lambda: task(job).up, what="up")
        borglet.kill()
        borglet.start()
        ended = until(lambda: (row := task(job)).state == "dead" and row, what="at its limit")
    assert (ended.outcome, ended.incarnation, ended.restarts) == ("failed", 1, 0)
    exit_ = ended.exit
    assert (exit_["cause"], exit_["signal"], exit_["notice"]) == ("time-limit", 9, "full"), exit_
    assert ended.detail.startswith("time limit, killed by signal 9: the task ran for 3 s, which is its max_run_s")
    assert "killed after a notice of 1 s" in ended.detail
    assert exit_["at"] - placed_at >= 4.0  # the limit and the notice
    (log,) = (tmp_path / "home/logs").rglob("stdout*")
    assert "asked to stop" in log.read_text()
