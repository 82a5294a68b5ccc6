"""Tests of machines that die and machines that are only cut off, over a real link with a real master (§3.3, §4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduling.cells.cells import cell_set
from scheduling.master.loop import Master
from scheduling.models import Brake, Cell, Departure, Job, Machine, Task
from tests.integration import rows, world
from tests.integration.fleets import fleet
from tests.integration.link_world import running_link

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

# The tasks are placed elsewhere within `NOTICED_S` at a poll interval of five seconds (12.3 s on a busy machine). A
# machine that stands still for a moment may add `STALLED_S`.
NOTICED_S, STALLED_S = 15.0, 5.0


@pytest.fixture
def cell(cell: Cell) -> Cell:
    return cell_set(principal=rows.ME, cell=cell, settings={"poll_interval_s": 5.0})


@pytest.fixture
def master(cell: Cell) -> Master:
    return Master(cell.id)


def work(master: Master, condition: Callable[[], bool], *, seconds: float) -> float:
    """Run the master until the condition is true. Return how long that took, in seconds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            pytest.fail(f"not within {seconds} s: {_story()}")
        assert master.run(0.1)
    return time.monotonic() - began


def _story() -> str:
    machines = list(Machine.objects.values_list("hostname", "state", "reason"))
    return f"{machines} {list(Task.objects.values_list('id', 'state', 'machine__hostname', 'phase'))}"


def all_up(job: Job) -> bool:
    return not Task.objects.filter(job=job, up=False).exists()


def on(job: Job, hostnames: list[str]) -> dict[int, int]:
    """Return the incarnation of each task of the job on these machines, by id of the task."""
    there = Task.objects.filter(job=job, machine__hostname__in=hostnames)
    return dict(there.values_list("id", "incarnation"))


def test_a_machine_that_dies_is_noticed_and_its_tasks_placed_elsewhere_within_15_s(
    cell, ann, master, tmp_path: Path
) -> None:
    """One machine is killed, which closes its connection, and another is frozen. All their tasks are moved."""
    job = world.submit(ann, cell, world.a_file(tasks=24))
    with (
        running_link() as link,
        fleet(tmp_path, link, cell, ["stays1", "stays2", "stays3"]),
        fleet(tmp_path, link, cell, ["killed"]) as killed,
        fleet(tmp_path, link, cell, ["frozen"]) as frozen,
    ):
        work(master, lambda: all_up(job), seconds=60)
        lost = on(job, ["killed", "frozen"])
        assert len(on(job, ["killed"])) > 0
        assert len(on(job, ["frozen"])) > 0
        killed.kill()
        frozen.freeze()

        def placed() -> bool:
            return not on(job, ["killed", "frozen"]) and not Task.objects.filter(job=job, state="pending").exists()

        took_s = work(master, placed, seconds=NOTICED_S + 15)
        assert took_s <= NOTICED_S + STALLED_S, f"took {took_s:.1f} s"
        assert {"killed", "frozen"} == set(Machine.objects.filter(state="down").values_list("hostname", flat=True))
        work(master, lambda: all_up(job), seconds=30)
        # Incarnation 3 means that a task of the first machine was placed on the second one meanwhile.
        assert {Task.objects.get(pk=task).incarnation for task in lost} <= {2, 3}
        assert not Brake.objects.exists()

        frozen.thaw()  # only the tasks that it still ran are stopped
        work(master, lambda: not Departure.objects.filter(machine__hostname="frozen").exists(), seconds=60)
        assert set(lost) == {task.id for task in Task.objects.filter(job=job, incarnation__gt=1)}


def test_a_third_of_the_cell_that_is_cut_off_and_comes_back_keeps_its_tasks(cell, ann, master, tmp_path: Path) -> None:
    job = world.submit(ann, cell, world.a_file(tasks=48))
    stay, cut = [f"stays{n}" for n in range(8)], [f"cut{n}" for n in range(4)]
    with running_link() as link, fleet(tmp_path, link, cell, stay), fleet(tmp_path, link, cell, cut) as away:
        work(master, lambda: all_up(job), seconds=60)
        before = on(job, cut)
        assert len(before) > 8
        away.freeze()
        frozen_at = time.monotonic()
        down = Machine.objects.filter(state="down")
        work(master, lambda: down.count() == 4, seconds=40)
        assert Brake.objects.get(kind="lost").state == "bounded"
        began = time.monotonic()
        work(master, lambda: time.monotonic() - began > 10, seconds=60)
        away.thaw()
        work(master, lambda: not down.exists() and not Departure.objects.exists() and all_up(job), seconds=60)
        moved = Task.objects.filter(job=job, incarnation__gt=1).count()
        # One task leaves at once, then 5 % of 48 tasks per minute.
        assert moved <= 1 + 48 * 0.05 / 60 * (time.monotonic() - frozen_at)
        after = on(job, cut)
        kept = [task for task, number in before.items() if after.get(task) == number]
        assert len(kept) == len(before) - moved
        work(master, lambda: Brake.objects.get(kind="lost").state == "open", seconds=90)
