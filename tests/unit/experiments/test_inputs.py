"""Tests of a checkpoint of a real cell as the input of experiments."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from scheduling.history.checkpoints.file import Header, write
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.checkpoints.tables import tables_of
from scheduling.simulator.experiments.experiment import ExperimentInput
from scheduling.simulator.experiments.inputs import checkpoint_input
from scheduling.simulator.experiments.packing.compaction import compact
from tests.builders import GIB, World, must


def a_world() -> World:
    """Return six machines of 4 cores, one of them down, with running, ended and pending tasks."""
    world = World()
    for number in range(6):
        world.machine(f"m{number}", cpu=4000)
    world.job("web", tasks=4, cpu=2000, constraints=(must("hostname", "=", "m1"),))
    for index in range(3):
        world.place("web", index, on="m1" if index < 2 else "m2")
    world.job("old", cpu=500).place("old", 0, on="m3").end("old", 0)
    world.job("waits", cpu=500)
    world.reserve("web", 0, cpu=1400, ram=GIB // 2)
    return world.machine_state("m5", "down")


def saved(world: World, path: Path) -> Path:
    state = RecordedState()
    state.apply_all((event, revision, at) for revision, (event, at) in enumerate(world.journal, start=1))
    file = io.BytesIO()
    write(file, Header(cell="cc", revision=state.revision, taken_at=0.0, history="h"), tables_of(state))
    path.write_bytes(file.getvalue())
    return path


@pytest.fixture
def given(tmp_path: Path) -> ExperimentInput:
    return checkpoint_input(saved(a_world(), tmp_path / "cell.checkpoint"))


def test_a_checkpoint_gives_its_machines_and_its_running_tasks(given: ExperimentInput) -> None:
    assert [machine.hostname for machine in given.work.machines] == ["m0", "m1", "m2", "m3", "m4"]
    (web,) = given.work.jobs
    assert (web.name, [group.ranges for group in web.groups]) == ("web", [((0, 2),)])
    assert not web.groups[0].requirement.constraints[0].hard  # three tasks cannot all be on one machine
    assert "5 machines, 1 jobs, 3 tasks, from a checkpoint of cell cc" in given.source


def test_usage_follows_from_the_reservations(given: ExperimentInput) -> None:
    (web,) = given.work.jobs
    tasks = np.array([web.job_id << 20 | index for index in (1, 0)], dtype=np.int64)
    limit = np.tile(np.array(web.groups[0].requirement.limit), (2, 1))
    usage = given.behaviour.demand(tasks, limit, np.full(2, 200), 0.0)
    assert usage[:, 0].tolist() == [int(2000 / 1.25), int(1400 / 1.25)]
    assert usage[1, 1] == int(GIB / 2 / 1.25)


def test_different_usage_gives_another_fingerprint(given: ExperimentInput, tmp_path: Path) -> None:
    other = checkpoint_input(saved(a_world().reserve("web", 1, cpu=700, ram=GIB), tmp_path / "other"))
    assert other.work == given.work
    assert other.fingerprint() != given.fingerprint()


def test_the_cell_of_a_checkpoint_can_be_compacted(given: ExperimentInput) -> None:
    assert compact(given.work, given.packing(), seed=1).machines == 2


def test_a_checkpoint_without_running_tasks_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no task runs on a machine that is up"):
        checkpoint_input(saved(World().machine("m0").job("waits"), tmp_path / "cell.checkpoint"))
