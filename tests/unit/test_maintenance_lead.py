"""Tests of the time that the drains of a maintenance window need."""

from __future__ import annotations

import pytest

from scheduling.maintenance.lead import LONGEST_LEAD_S, MOVE_S, LeavingJob, lead_s


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ([], 10.0),
        ([LeavingJob(4, may=4)], MOVE_S + 4.0),
        ([LeavingJob(4, may=1)], 4 * MOVE_S + 4.0),
        ([LeavingJob(4, may=1), LeavingJob(9, may=3)], 4 * MOVE_S + 13.0),
        ([LeavingJob(5, may=0)], 5 * MOVE_S + 5.0),
        ([LeavingJob(5, may=5, most=2, window_s=3600.0, left=2)], 2 * 3600.0 + 5.0),
        ([LeavingJob(2, may=5, most=2, window_s=3600.0, left=2)], MOVE_S + 2.0),
        ([LeavingJob(9_000, may=1)], LONGEST_LEAD_S),
    ],
)
def test_the_slowest_job_decides_when_drains_begin(jobs: list[LeavingJob], expected: float) -> None:
    assert lead_s(jobs, least_s=10.0, drain_per_s=1.0) == expected
