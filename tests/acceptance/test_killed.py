"""Tests that SIGKILL to any one process of an installation stops no task and loses no acknowledged job.

The service must be complete again within 15 s.
"""

from __future__ import annotations

import pytest

from tests.acceptance.installation import Installation, wait_for
from tests.quickness import stretch

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
BACK_S = 15.0  # on an otherwise idle host
BOUND_S = 120.0
_PROCESSES = ("preload", "web", "link", "worker", "master", "beat", "resolver", "borglet", "redis", "postgres")


@pytest.mark.parametrize("name", _PROCESSES)
def test_a_killed_process_costs_no_task_and_nothing_acknowledged(shared: Installation, name: str) -> None:
    tasks = shared.task_pids("hello")
    assert len(tasks) == 3
    job = f"before-{name}"
    shared.submit(job, ["sleep", "infinity"])  # acknowledged, and perhaps not yet placed when the process is killed

    killed = shared.kill(name)

    def back() -> bool:
        return shared.pid(name) not in (None, killed) and shared.well() is None and shared.up(job)

    busy = stretch()
    took_s = wait_for(back, BOUND_S, story=lambda: (name, shared.pid(name), shared.well(), shared.output()[-2000:]))
    assert took_s <= BACK_S * max(busy, stretch()), f"{name} was back after {took_s:.1f} s"
    assert shared.task_pids("hello") == tasks, f"tasks of hello changed when {name} was killed"
    restarts = [row["restarts"] for row in shared.tasks("hello")]
    assert restarts == [0, 0, 0], f"{name} was back after {took_s:.1f} s, but tasks were restarted"
    shared.borgctl("kill", job)
