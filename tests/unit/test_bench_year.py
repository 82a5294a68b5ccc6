"""Tests of the bench `year`, a simulated year of a cell: its verdict finds growth, and each run does the same work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.bench.year import work
from tests.bench.year.figures import COUNTED, growth, pages_verdict, verdict


def month(number: int, *, mib: float = 100.0) -> dict[str, Any]:
    return {"month": number, "database_mib": mib, "without_400_days_mib": mib, "rows": dict.fromkeys(COUNTED, 1000)}


def test_growth_is_that_of_the_line_through_all_values() -> None:
    assert growth([100, 100, 100]) == pytest.approx(0.0)
    assert growth([100, 105, 110]) == pytest.approx(0.10)
    assert growth([100, 130, 100]) == pytest.approx(0.0), "one month that differs is not a trend"


def test_a_year_that_fills_in_its_first_months_only_is_flat() -> None:
    found = verdict([month(number, mib=min(25.0 * number, 100.0)) for number in range(1, 13)])
    assert "failed" not in found
    assert (found["months"], found["value"]) == (9, 0.0)


def test_a_database_that_grows_all_year_is_not_flat() -> None:
    found = verdict([month(number, mib=100.0 + 3 * number) for number in range(1, 13)])
    assert found["failed"] == ["database_mib", "without_400_days_mib"]


def test_a_page_that_gets_slower_is_named_and_noise_is_not() -> None:
    slower = pages_verdict({"/": [(10.0, 20.0), (10.0, 35.0)], "/jobs/": [(10.0, 200.0), (10.0, 215.0)]})
    assert slower["failed"] == {"/": {"p50_ms": (10.0, 10.0), "p99_ms": (20.0, 35.0)}}
    assert "failed" not in pages_verdict({"/": [(10.0, 20.0), (10.0, 29.0)], "/jobs/": [(10.0, 200.0), (9.0, 150.0)]})


def test_jobs_have_as_many_tasks_as_asked_for_and_runs_depend_on_ids_only() -> None:
    files = work.batch_jobs(np.random.default_rng(1), 10, 700)
    assert sum(file["tasks"] for file in files) == 700
    assert files == work.batch_jobs(np.random.default_rng(1), 10, 700)
    ids, incarnations = np.arange(1, 20_001) << 20, np.ones(20_000, dtype=np.int64)
    lengths, fails = work.runs(ids, incarnations)
    backwards = work.runs(ids[::-1], incarnations)[0][::-1]
    assert (lengths == backwards).all()
    assert 1.0 < lengths.mean() / 3600 < 4.0
    assert 0.02 < fails.mean() < 0.04
    assert (work.runs(ids, incarnations + 1)[0] != lengths).mean() > 0.9
