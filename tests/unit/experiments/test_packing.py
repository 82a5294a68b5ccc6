"""Tests of compaction (§5.1), the search for the fewest machines that hold a cell's tasks.

The expected results are computed by hand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduling.core.vocabulary.reclamation_presets import BASELINE, MEDIUM
from scheduling.core.vocabulary.requirement import task_id
from scheduling.simulator.experiments.experiment import ExperimentInput
from scheduling.simulator.experiments.packing.compaction import Compacted, compact, smallest_step
from scheduling.simulator.experiments.packing.reservations import settled_reservations
from scheduling.simulator.experiments.packing.shrinking import Packing, ShrinkingCell
from tests.unit.experiments.small_inputs import BATCH, GIB, Constant, cell, job, mixed


@pytest.mark.parametrize("threshold", [1, 2, 3, 37, 99, 100])
@pytest.mark.parametrize("low", [-1, 0])
def test_the_smallest_step_is_found(threshold: int, low: int) -> None:
    tried = []

    def fits(step: int) -> bool:
        tried.append(step)
        return step >= threshold

    assert smallest_step(fits, low, 100) == threshold
    assert len(tried) == len(set(tried)) <= 15


def test_there_may_be_no_step() -> None:
    assert smallest_step(lambda step: False, 0, 100) is None


def test_two_tasks_that_need_more_than_half_a_machine_need_two_machines() -> None:
    work = cell(10, job(1, tasks=6, cpu=5000), job(2, tasks=6, cpu=3000))
    assert compact(work, Packing(), seed=0) == Compacted(machines=6, clones=1)


def test_a_task_may_stay_pending_only_in_a_large_cell() -> None:
    five_hundred = cell(300, job(1, tasks=500, cpu=4000))
    assert compact(five_hundred, Packing(), seed=0).machines == 250  # 0.2 % is one task, which needs half a machine
    assert ShrinkingCell(five_hundred, Packing(), seed=0).may_wait == 1
    apart = cell(300, job(1, tasks=500, cpu=4000), job(2, tasks=1, cpu=9000))
    assert compact(apart, Packing(), seed=0).machines == 250
    assert not ShrinkingCell(cell(3, job(1, tasks=2, cpu=9000)), Packing(), seed=0).fits(3)


def test_a_cell_that_is_too_small_is_cloned() -> None:
    work = cell(4, job(1, tasks=6, cpu=8000))
    assert compact(work, Packing(), seed=0) == Compacted(machines=6, clones=2)
    assert compact(cell(2, job(1, tasks=6, cpu=8000)), Packing(), seed=0) == Compacted(machines=6, clones=4)


def test_work_that_fits_on_no_number_of_machines_is_rejected() -> None:
    with pytest.raises(ValueError, match="do not fit, even with 4 copies of each of the 2 machines"):
        compact(cell(2, job(1, tasks=1, cpu=9000)), Packing(), seed=0)


def test_clones_are_machines_of_their_own() -> None:
    clones = cell(3).cloned(2)
    assert len({machine.machine_id for machine in clones}) == len({machine.hostname for machine in clones}) == 6
    assert clones[:3] == cell(3).machines
    assert not {machine.rack for machine in clones[:3]} & {machine.rack for machine in clones[3:]}


def test_each_seed_removes_machines_in_its_own_order() -> None:
    work = cell(20)
    orders = [[m.hostname for m in ShrinkingCell(work, Packing(), seed=seed).machines] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_equal_seeds_give_equal_results() -> None:
    large = replace(cell(8, cpu=4000), machines=(*cell(8, cpu=4000).machines, *cell(16).machines[8:]))
    work = replace(large, jobs=(job(1, tasks=3, cpu=6000), job(2, tasks=9, cpu=2000)))
    found = [[compact(work, Packing(), seed=seed) for seed in range(4)] for _ in range(2)]
    assert found[0] == found[1]
    assert len({one.machines for one in found[0]}) > 1  # small machines may be first


def test_a_reservation_settles_at_the_usage_and_its_margin() -> None:
    given = mixed()
    for preset, margin in ((MEDIUM, 0.25), (BASELINE, 0.40)):
        found = settled_reservations(given.work, preset, given.behaviour)
        cpu = found.of(np.array([task_id(1, 0), task_id(2, 3)]))[:, 0]
        assert cpu[0] == pytest.approx(2000 * (1 + margin), rel=0.02)
        assert cpu[1] == 5000  # never above the limit
    with pytest.raises(LookupError, match="has no reservation"):
        found.of(np.array([task_id(3, 0)]))


def test_batch_tasks_fit_into_what_prod_tasks_do_not_use() -> None:
    given = mixed()
    assert compact(given.work, given.packing(), seed=0).machines == 4
    assert compact(given.work, Packing(), seed=0).machines == 8


def test_batch_tasks_are_placed_again_after_earlier_ones_have_settled() -> None:
    work = cell(4, job(1, tasks=3, cpu=5000, priority=BATCH))
    given = ExperimentInput(work, Constant({1: 1000}))
    assert compact(work, given.packing(), seed=0).machines == 1  # two with 1.25 cores, and 5 cores for the last one


def test_each_packing_is_from_scratch() -> None:
    work = cell(4, job(1, tasks=4, cpu=8000), job(2, tasks=3, cpu=5000, priority=BATCH))
    shrinking = ShrinkingCell(work, ExperimentInput(work, Constant({1: 2000, 2: 5000})).packing(), seed=0)
    assert [shrinking.fits(number) for number in (4, 3, 4)] == [True, False, True]


def test_prod_tasks_never_use_reclaimed_resources() -> None:
    work = cell(4, job(1, tasks=4, cpu=5000))
    given = ExperimentInput(work, Constant({1: 1000}))
    assert compact(work, given.packing(), seed=0).machines == 4


def test_the_lower_bound_counts_the_scarcest_resource() -> None:
    work = cell(10, job(1, tasks=5, cpu=1000, ram=64 * GIB), job(2, tasks=4, cpu=8000))
    assert ShrinkingCell(work, Packing(), seed=0).fewest_by_sums() == 6  # 37 of 80 cores, 324 of 640 GiB
