"""Tests of a task that prints ten thousand lines per second or more: its machine still answers in time."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from scheduling.machines import last_contact, log_requests
from scheduling.machines.joining import join_token_issue
from scheduling.models import Machine
from tests.integration import rows
from tests.integration.link_world import a_job, place, running_link, task, until
from tests.integration.real_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)

MEASURED_S = 4.0
TICKER = """
import sys, time
line, began, said = "x" * 90, time.monotonic(), 0
while True:
    due = int((time.monotonic() - began) * 10_000)
    sys.stdout.write("".join(f"{number} {line}\\n" for number in range(said, due)))
    sys.stdout.flush()
    said = due
    time.sleep(0.01)
"""


@pytest.mark.parametrize("command", [[sys.executable, "-c", TICKER], ["yes", "x" * 99]], ids=["10,000/s", "flat out"])
def test_polls_are_answered_while_a_task_chatters(tmp_path: Path, command: list[str]) -> None:
    tmp_path.chmod(0o711)
    cell = rows.a_cell()
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(running_link())
        borglet = stack.enter_context(contextlib.closing(Borglet(tmp_path / "home", link)))
        borglet.start(join_token_issue(principal=rows.ME, cell=cell))
        machine = until(lambda: Machine.objects.filter(session__gt=0).first(), what="connected")
        job = a_job(cell, command=command, limit={"cpu": "1", "ram": "64Mi"})
        key = place(job, machine.id)
        until(lambda: task(job).up, what="up")
        until(lambda: last_contact.holder_of(cell.id, machine.id), what="holder known")
        until(lambda: log_requests.fetch(machine, key).end > 2**20, what="a MiB printed")
        began, first = time.monotonic(), log_requests.fetch(machine, key).end
        latencies: list[float] = []
        while time.monotonic() - began < MEASURED_S:
            number, asked = len(latencies), time.monotonic()
            if number % 5:
                assert log_requests.fetch(machine, key).text
            else:
                assert not log_requests.fetch(machine, key, offset=0, search="is not there").lines
            latencies.append(time.monotonic() - asked)
        printed = log_requests.fetch(machine, key).end - first
        took_s = time.monotonic() - began
        kept = sum(path.stat().st_size for path in (tmp_path / "home" / "logs").rglob("*") if path.is_file())
    print(
        f"slowest of {len(latencies)} answers {max(latencies):.3f} s, median {median(latencies):.4f} s,",
        f"{printed / took_s / 100:.0f} lines a second, {kept / 2**20:.1f} MiB kept",
    )
    late = [taken for taken in latencies if taken >= 1.0]
    assert len(late) <= len(latencies) / 100, "nor by the machine's other work, but for once in a hundred"
    assert printed / took_s / 100 > 5_000
    assert printed / took_s < 40 * 2**20, "what one task may print takes no more of the disk"
    assert kept < 5 * 8 * 2**20
