"""Tests of how many seconds before SIGTERM the names of a task are removed, as the link sends this to machines."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling.jobs import updates
from scheduling.link.views.desired import Specs, load
from scheduling.models import Cell, Job, Machine
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)


def reported(cell: Cell) -> dict[str, float]:
    """Return by "job/index" how many seconds before SIGTERM each task leaves the answers to name queries."""
    loaded = load(cell.id, Machine.objects.values_list("id", flat=True), Specs()).values()
    runs = [task for machine in loaded for task in machine.desired.run]
    return {"/".join(task.name.split("/")[2:]): task.leave_s for task in runs}


def test_it_is_the_time_to_live_and_a_second_unless_the_job_says_otherwise(cell, ann, settings) -> None:
    files: dict[str, dict[str, Any]] = {
        "plain": world.a_file("plain", tasks=1),
        "short": world.a_file("short", tasks=1, names={"ttl_s": 1}),
        "quick": world.a_file("quick", tasks=1, names={"ttl_s": 30, "leave_s": 0}),
        "slow": world.a_file("slow", tasks=1, names={"leave_s": 2.5}),
        "day": world.a_file("day", tasks=1, names={"ttl_s": 86_400}),
        "mute": world.with_task("mute", tasks=1, ports=[]),
        "asked": world.with_task("asked", tasks=1, ports=[]) | {"names": {"leave_s": 3}},
    }
    for file in files.values():
        world.bring_up(world.submit(ann, cell, file), rows.a_machine(cell, file["name"]))
    wanted = {"plain": 6, "short": 2, "quick": 0, "slow": 2.5, "day": 600, "mute": 0, "asked": 3}
    assert reported(cell) == {f"{name}/0": leave_s for name, leave_s in wanted.items()}
    settings.BORG_DNS_TTL = 20
    assert reported(cell) == {f"{name}/0": leave_s for name, leave_s in (wanted | {"plain": 21}).items()}


def test_a_change_is_in_force_at_once_for_tasks_that_wait_for_their_restart(cell, machine, ann) -> None:
    """If an update changes the time to live of names, tasks of the old version also wait that long before SIGTERM."""
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    assert reported(cell) == {"web/0": 6, "web/1": 6, "web/2": 6}
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    file = world.with_task(command=["other"]) | {"names": {"ttl_s": 60}}
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    assert world.versions(job) == [2, 1, 1]
    assert reported(cell) == {"web/1": 61, "web/2": 61}
