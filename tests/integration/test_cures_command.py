"""A cure that a real master finds, and that a command of `borgctl` applies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import pytest
from django.db import connections

from scheduling.master.loop import Master
from scheduling.models import PendingVerdict, Task
from tests.integration import cli_world, rows, world
from tests.integration.test_cures import a_pending_job, make


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.02)


@pytest.mark.django_db(transaction=True)
def test_a_cure_of_a_master_is_applied_with_one_command(tmp_path, shared_portal) -> None:
    """`borgctl why` asks a master over Redis. The first command that it prints lets the job start."""
    cell, ann = make()
    job = world.submit(ann, cell, a_pending_job())
    borgctl = cli_world.of(tmp_path, shared_portal, "ann", tenant=rows.a_tenant("ubar"))
    stopping = threading.Event()

    def run() -> None:
        try:
            Master(cell.id, holder="test:1").run(60.0, stopping)
        finally:
            connections.close_all()

    def patches(borgctl: cli_world.Cli) -> list[object]:
        return [cure["patch"] for cure in borgctl.json("why", "web/0")["cures"]["cures"] if cure["patch"]]

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: PendingVerdict.objects.filter(job=job).exists())
        # A busy master, or one whose kernels are not compiled yet, answers later.
        best = "1. Lower cpu per task from 6 to 4. Places 1 task at once."
        wait_until(lambda: best in (told := borgctl.out("why", "web")) and "tried by the scheduler at revision" in told)
        wait_until(lambda: patches(borgctl))
        (patch,) = patches(borgctl)
        assert "Dry run" in borgctl.out("patch", "web", json.dumps(patch), "--dry-run")
        assert "version 2" in borgctl.out("patch", "web", json.dumps(patch))
        wait_until(lambda: Task.objects.filter(job=job, state="running").exists())
        assert "would be admitted" in borgctl.out("copy", "web", "--to", "big", "--dry-run")
        assert "not JSON" in borgctl.failing("patch", "web", "{", status=2)[0]
    finally:
        stopping.set()
        thread.join()
