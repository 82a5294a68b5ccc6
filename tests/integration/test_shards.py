"""Tests of several link shards on one address (§3.3): machines of a killed shard connect to another one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scheduling.cells.cells import cell_set
from scheduling.journal import wakeups
from scheduling.link.transport.spread import FEW
from scheduling.machines import last_contact
from scheduling.master.loop import Master
from scheduling.models import Cell, Machine, Task
from tests.integration import rows, world
from tests.integration.fleets import fleet
from tests.integration.link_world import running_link
from tests.integration.portal_server import database_url
from tests.integration.test_vanishing import all_up, work

pytestmark = pytest.mark.django_db(transaction=True)

HOSTS = [f"m{n}" for n in range(2 * FEW + 2)]


@pytest.fixture
def cell(cell: Cell) -> Cell:
    # On a busy host, answers take seconds.
    return cell_set(principal=rows.ME, cell=cell, settings={"poll_interval_s": 2.0, "down_after_s": 40.0})


@pytest.fixture
def master(cell: Cell) -> Master:
    return Master(cell.id)


@contextmanager
def another_shard(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start one more link shard on `port` in a process of its own, and yield the process."""
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings.production",
        "BORG_DATABASE_URL": database_url(),
        "BORG_SECRET_KEY": "of-the-tests-" + "x" * 50,
        "BORG_LINK_PORT": str(port),
        "BORG_LINK_SHARED_PORT": "1",
    }
    with (folder / "shard.log").open("ab") as output:
        command = [sys.executable, "-m", "scheduling.link"]
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def served_by(process: subprocess.Popen[bytes]) -> int:
    """Return how many machines a shard reports that it serves, or -1 before its first report."""
    loads = wakeups.client().hgetall("borg:link:loads")
    told = [value for name, value in loads.items() if f"-{process.pid}-" in name.decode()]
    return int(told[0].split()[1]) if told else -1


def test_machines_of_a_killed_shard_go_on_at_another_and_spread_once_it_is_back(
    cell, ann, master, settings, tmp_path: Path
) -> None:
    settings.BORG_LINK_SHARED_PORT = True
    job = world.submit(ann, cell, world.a_file(tasks=len(HOSTS)))
    with running_link() as link, another_shard(tmp_path, link.port) as killed:
        work(master, lambda: served_by(killed) == 0, seconds=30)
        with fleet(tmp_path, link, cell, HOSTS):
            work(master, lambda: all_up(job), seconds=60)
            incarnations = dict(Task.objects.filter(job=job).values_list("id", "incarnation"))
            states = list(Machine.objects.order_by("id").values_list("id", "state", "state_since"))
            work(master, lambda: served_by(killed) > 0, seconds=10)
            killed.kill()
            at = time.time()

            def heard_again() -> bool:
                last = last_contact.read(cell.id).last
                return len(link.shard.connections) == len(HOSTS) and min(last.values()) > at

            work(master, heard_again, seconds=30)
            with another_shard(tmp_path, link.port) as back:
                # Of so few machines, a surplus of `FEW` is even enough.
                work(master, lambda: 0 < len(link.shard.connections) <= len(HOSTS) // 2 + FEW, seconds=60)
                work(master, lambda: served_by(back) >= len(HOSTS) // 2 - FEW, seconds=10)
                assert all_up(job)
                assert dict(Task.objects.filter(job=job).values_list("id", "incarnation")) == incarnations
                assert list(Machine.objects.order_by("id").values_list("id", "state", "state_since")) == states
