"""Tests of the paper's experiments on cells of a few machines, with results computed by hand."""

from __future__ import annotations

import pytest

from scheduling.simulator.experiments.catalogue import CASES, EXPERIMENTS
from scheduling.simulator.experiments.experiment import ExperimentInput, Row, additional, result_of
from scheduling.simulator.experiments.procedures.buckets import bucketed, rounded
from scheduling.simulator.experiments.procedures.estimation import PERIODS, simulate_periods
from scheduling.simulator.experiments.procedures.split_cells import partitions
from scheduling.simulator.experiments.procedures.split_users import FULL_CELL, large_users
from tests.unit.experiments.small_inputs import BATCH, GIB, PROD, Constant, cell, job, mixed


def test_the_result_is_the_ninetieth_percentile_of_eleven_trials() -> None:
    row = result_of("x", "%", [float(value) for value in range(1, 12)], paper_low=1, paper_high=9)
    assert (row.value, row.low, row.high) == (10, 1, 11)
    assert row.verdict() == "above the paper's 1–9 %"
    with pytest.raises(ValueError, match="run the experiment first"):
        result_of("x", "%", [])


def test_additional_machines_are_relative_to_the_result_of_the_whole_cell() -> None:
    row = additional("x", [{"machines": 120.0}, {"machines": 150.0}], [{"machines": 90.0}, {"machines": 100.0}])
    assert (row.value, row.low, row.high) == (pytest.approx(50), pytest.approx(20), pytest.approx(50))


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(19.0, "below the paper's 20–30 %"), (25.0, "within the paper's 20–30 %"), (31.0, "above the paper's 20–30 %")],
)
def test_a_verdict_compares_with_the_papers_range(value: float, verdict: str) -> None:
    assert Row("x", "%", value, value, value, 20, 30).verdict() == verdict
    assert "no number" in Row("x", "%", value, value, value).verdict()


def test_every_experiment_uses_known_cases() -> None:
    assert [one.figure for one in EXPERIMENTS.values()] == [4, 5, 6, 7, 8, 9, 10, 12]
    assert {case for one in EXPERIMENTS.values() for case in one.cases} == CASES.keys()


def test_segregated_work_and_work_without_reclamation_need_eight_machines_instead_of_four() -> None:
    given = mixed()
    assert CASES["whole"](given, 0) == {"machines": 4, "clones": 1, "original": 10}
    assert CASES["segregated"](given, 0) == {"machines": 8, "prod": 4, "nonprod": 4}
    assert CASES["no-reclamation"](given, 0)["machines"] == 8
    results = {case: [CASES[case](given, 0)] for case in ("whole", "segregated", "no-reclamation")}
    for name in ("segregation", "reclamation"):
        (row,) = EXPERIMENTS[name].rows(results)
        assert (row.value, row.unit) == (100, "% more machines")
    assert EXPERIMENTS["compaction"].rows(results)[0].value == 40


def test_limits_are_rounded_up_to_powers_of_two() -> None:
    assert rounded((501, GIB + 1, 7, 0, 0, 0)) == (1000, 2 * GIB, 7, 0, 0, 0)
    assert rounded((1, 1, 7, 0, 0, 0)) == (500, GIB, 7, 0, 0, 0)
    assert rounded((4000, 8 * GIB, 7, 0, 0, 0)) == (4000, 8 * GIB, 7, 0, 0, 0)


def test_a_rounded_task_that_fits_no_machine_waits_or_gets_a_machine() -> None:
    work = cell(
        10,
        job(1, tasks=4, cpu=2500),  # 4 cores: two per machine instead of three
        job(2, tasks=3, cpu=5000, ram=40 * GIB),  # 8 cores, 64 GiB
        job(3, tasks=1, cpu=1000, ram=65 * GIB),  # 128 GiB: larger than every machine
        job(4, tasks=1, cpu=2500, priority=BATCH),
        cpu=8000,
    )
    found, large = bucketed(work)
    assert large == 1
    assert [one.job_id for one in found.jobs] == [1, 2, 4]
    assert found.jobs[2] == work.jobs[3]
    given = ExperimentInput(work, Constant({1: 2500, 2: 5000, 3: 1000, 4: 2500}))
    assert CASES["buckets"](given, 0) == {"machines": 6, "upper": 7, "large": 1}


def test_users_are_large_by_the_memory_that_they_ask_for() -> None:
    work = cell(
        2,
        job(1, tasks=2, cpu=1000, ram=5 * GIB, tenant="a"),
        job(2, tasks=1, cpu=1000, ram=6 * GIB, tenant="b"),
        job(3, tasks=4, cpu=1000, ram=GIB, tenant="b"),
        job(4, tasks=9, cpu=1000, ram=GIB, tenant="c"),
    )
    assert large_users(work, 10 * GIB) == ["a", "b"]
    assert large_users(work, 11 * GIB) == []


def test_each_large_user_gets_a_cell() -> None:
    number = 4
    threshold_gib = 10 * 1024 * number / FULL_CELL  # 3.3 GiB
    work = cell(
        number,
        job(1, tasks=1, cpu=4000, ram=4 * GIB, tenant="a"),
        job(2, tasks=1, cpu=4000, ram=4 * GIB, tenant="b"),
        job(3, tasks=1, cpu=2000, ram=GIB, tenant="c"),
        job(4, tasks=1, cpu=2000, ram=GIB, tenant="d"),
    )
    assert 2 < threshold_gib < 4
    given = ExperimentInput(work, Constant({1: 4000, 2: 4000, 3: 2000, 4: 2000}))
    assert CASES["whole"](given, 0)["machines"] == 2
    assert CASES["split-users-10-tib"](given, 0) == {"machines": 3, "cells": 3}
    assert CASES["split-users-100-tib"](given, 0) == {"machines": 2, "cells": 1}


def test_jobs_are_dealt_out_to_cells_in_a_random_order() -> None:
    work = cell(2, *(job(number, tasks=1, cpu=1000) for number in range(1, 12)))
    parts = partitions(work, 5, seed=3)
    assert [len(part.jobs) for part in parts] == [3, 2, 2, 2, 2]
    assert sorted(one.job_id for part in parts for one in part.jobs) == list(range(1, 12))
    assert parts == partitions(work, 5, seed=3) != partitions(work, 5, seed=4)
    assert all(part.machines == work.machines for part in parts)


def test_smaller_cells_need_more_machines() -> None:
    work = cell(4, *(job(number, tasks=1, cpu=3000) for number in range(1, 11)))
    given = ExperimentInput(work, Constant(dict.fromkeys(range(1, 11), 3000)))
    assert CASES["whole"](given, 0)["machines"] == 5  # two of ten tasks per machine
    assert CASES["split-cells-2"](given, 0) == {"machines": 6}  # five tasks each
    assert CASES["split-cells-10"](given, 0) == {"machines": 10}


def test_shapes_are_counted_by_tasks() -> None:
    work = cell(
        2, job(1, tasks=3, cpu=2000, ram=4 * GIB, priority=PROD), job(2, tasks=1, cpu=500, ram=2 * GIB, priority=BATCH)
    )
    figures = CASES["shapes"](ExperimentInput(work), 0)
    assert figures["prod CPU p50"] == 2
    assert figures["non-prod RAM p90"] == 2
    assert figures["most frequent CPU"] == figures["whole cores"] == 75
    assert figures["correlation"] == pytest.approx(1)
    rows = {row.label: row.value for row in EXPERIMENTS["shapes"].rows({"shapes": [figures]})}
    assert rows["prod RAM, median"] == 4


def test_reservations_decrease_to_the_margin_of_each_period() -> None:
    given = ExperimentInput(cell(4, job(1, tasks=4, cpu=8000)), Constant({1: 5000}))
    figures = simulate_periods(given, 0, kept=1.0, period_h=3)
    margins = {"baseline": 0.40, "aggressive": 0.10, "medium": 0.25}
    reserved = []
    for period, preset in enumerate(PERIODS):
        hour = 3 * period + 2
        assert figures[f"CPU usage {hour:03d}"] == 62.5
        assert figures[f"CPU limit {hour:03d}"] == 100
        reserved.append(figures[f"CPU reservation {hour:03d}"])
        # Changes below 5 % of the limit are not written, and a reservation that exceeds the usage is not raised.
        assert 62.5 < reserved[-1] <= 62.5 * (1 + margins[preset]) + 5
    assert reserved[1] < reserved[0] - 10
    assert figures["out of memory 011"] == figures["pending 011"] == 0
    assert figures == simulate_periods(given, 0, kept=1.0, period_h=3)
