"""Tests of packing the usage of many machines in steps: each machine gets the rows of its own tasks."""

from __future__ import annotations

from array import array

import numpy as np

from scheduling.usage.live_usage import SAMPLE, pack
from scheduling.usage.measured import MeasuredUsage


def usage(machine: int, tasks: int, columns: int) -> MeasuredUsage:
    figures = array("q")
    for row in range(1 + tasks):
        figures.extend([1000 * machine + row, 2, 3, row % 3][:columns])
    ids = array("q", [-machine, *(100 * machine + task for task in range(tasks))])
    return MeasuredUsage(machine, columns, figures, ids, array("q", [0] + [1] * tasks))


def test_machines_of_several_steps_keep_their_own_rows() -> None:
    measured = [(usage(machine, machine % 5, 4), 50.0 + machine) for machine in range(1, 200)]
    packed = pack([*measured, (usage(300, 2, 3), 7.0)])
    assert packed.keys() == {*range(1, 200), 300}
    for one, at in measured:
        rows = np.frombuffer(packed[one.machine_id], SAMPLE)
        tasks = len(one.task_ids) - 1
        # Tasks without processes are left out.
        kept = [0, *(row for row in range(1, 1 + tasks) if row % 3)]
        assert rows["task_id"].tolist() == [one.task_ids[row] for row in kept]
        assert rows["cpu_milli"].tolist() == [1000 * one.machine_id + row for row in kept]
        assert rows["at"].tolist() == [at] * len(kept)
    assert len(packed[300]) == SAMPLE.itemsize  # without the number of processes only the machine's row is known
