"""Tests of `borgctl logs` of a real process, through the web process, Redis, a link shard and a Borglet."""

from __future__ import annotations

import contextlib
import datetime as dt
import subprocess

import pytest

from quota.models import Tenant
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.journal import journal
from scheduling.machines.joining import join_token_issue
from scheduling.models import Departure, Machine
from scheduling.tasks import transitions
from tests.integration import cli_world, rows
from tests.integration.cli_world import BORGCTL
from tests.integration.link_world import a_job, place, running_link, task, until
from tests.integration.test_link_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_a_task_prints_is_read_and_followed_to_its_end(shared_portal, tmp_path) -> None:
    tmp_path.chmod(0o711)
    go = tmp_path / "go"
    go.mkdir(mode=0o777)
    go.chmod(0o777)
    cell = rows.a_cell()
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(running_link())
        borglet = stack.enter_context(contextlib.closing(Borglet(tmp_path / "home", link)))
        borglet.start(join_token_issue(principal=rows.ME, cell=cell))
        until(lambda: Machine.objects.filter(session__gt=0).exists(), what="connected")
        waiting = f"echo hello; echo oops >&2; while [ ! -e {go}/on ]; do sleep 0.05; done; echo bye; sleep 60"
        job = a_job(cell, command=["sh", "-c", waiting], limit={"cpu": "100m", "ram": "64Mi"})
        ann = cli_world.of(tmp_path, shared_portal, "ann", tenant=Tenant.objects.get())
        following = stack.enter_context(
            subprocess.Popen([BORGCTL, "logs", "jfoo/0", "-f"], env=ann.environment, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(following.kill)
        assert ann.failing("logs", "jfoo/0")[1]["code"] == "no-log"
        place(job, Machine.objects.get().id)
        until(lambda: task(job).up, what="up")
        assert following.stdout is not None
        assert following.stdout.readline() == "hello\n"
        assert ann.out("logs", "jfoo/0") == "hello\n"
        until(lambda: ann.out("logs", "jfoo/0", "--stderr") == "oops\n", what="and printed on")
        (go / "on").touch()
        assert following.stdout.readline() == "bye\n"
        with journal.write(cell.id, rows.ME) as entry:
            transitions.tasks_evict(entry, [Eviction(task_id(job.id, 0), 1, "other")])
        until(lambda: not Departure.objects.exists(), what="gone")
        place(job, Machine.objects.get().id)
        until(lambda: task(job).up, what="up again")
        assert following.stdout.readline() == "hello\n"
        with journal.write(cell.id, rows.ME) as entry:
            transitions.tasks_end(entry, [Ending(task_id(job.id, 0), "killed")])
        assert following.communicate(timeout=60)[0] in ("", "bye\n")
        assert following.returncode == 0
        until(lambda: not Departure.objects.exists(), what="gone")

        # Over, and read all the same: what it printed, and what its earlier placement did.
        assert ann.out("logs", "jfoo/0").startswith("hello\n")
        assert ann.out("logs", "jfoo/0", "--incarnation", "1") == "hello\nbye\n"
        told = ann.json("logs", "jfoo/0", "--incarnation", "1", "--grep", "BYE", "-i")
        assert (told["text"], told["offset"]) == ("bye", 6)
        at = dt.datetime.fromisoformat(told["at"])
        assert dt.timedelta() < dt.datetime.now(dt.UTC) - at < dt.timedelta(minutes=2)
        assert ann.out("logs", "jfoo/0", "--incarnation", "1", "--grep", "nowhere") == ""
        assert ann.out("logs", "jfoo/0", "--grep", "hello").endswith("  hello\n")
        assert ann.out("logs", "jfoo/0", "--since", "1h") == ann.out("logs", "jfoo/0")
        assert "there is no incarnation 3; give 1 to 2, or 0" in ann.failing("logs", "jfoo/0", "--incarnation", "3")[0]
        assert "is not a time" in ann.failing("logs", "jfoo/0", "--since", "noon", status=2)[0]
