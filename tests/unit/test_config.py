"""Tests of a cell's settings: an invalid one is rejected with its name and the accepted values."""

from __future__ import annotations

from typing import Any

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.policy import cell_settings


@pytest.mark.parametrize(
    "settings, field, told",
    [
        ([1], "settings", "must be a JSON object"),
        ({"nosuch": 1}, "settings", "contain unknown names: nosuch; the settings of a cell are scorer, "),
        ({"drain_patience_s": "x"}, "settings.drain_patience_s", "must be a number, such as 600.0"),
        ({"shortage_at": None}, "settings.shortage_at", "must be a number, such as 0.97"),
        ({"batch_in_prod_by_reservation": 3}, "settings.batch_in_prod_by_reservation", "must be true or false"),
        ({"scorer": 1}, "settings.scorer", 'must be text, such as "hybrid"'),
        ({"schedulers": "two"}, "settings.schedulers", "must be one or by-workload"),
        ({"reclamation": "medum"}, "settings.reclamation", "must be off or baseline or medium or aggressive"),
        ({"shortage_at": 2}, "settings.shortage_at", "must be between 0 and 1"),
        ({"ended_jobs_keep_days": "x"}, "settings.ended_jobs_keep_days", "must be a number, such as 30.0"),
        ({"drain_patience_s": -1}, "settings.drain_patience_s", "must be 0 or more"),
        ({"metered_hours_keep_days": 30.0}, "settings.metered_hours_keep_days", "must be at least 31"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: Any, field: str, told: str) -> None:
    with pytest.raises(Rejected) as caught:
        cell_settings.load(settings)
    assert told in caught.value.fields[field]
    assert told in caught.value.detail


@pytest.mark.parametrize(
    "settings, field, told",
    [
        ({"ended_jobs_keep_days": 1.0}, "ended_jobs_keep_days", "ended_jobs_keep_days must be at least 2"),
        (
            {"archive_keep_days": 10.0},
            "archive_keep_days",
            "archive_keep_days must be at least journal_keep_days, which is 14",
        ),
        (
            {"archive_keep_days": 20.0},
            "archive_keep_days",
            "archive_keep_days must be at least ended_jobs_keep_days, which is 30",
        ),
    ],
)
def test_settings_of_the_archive_that_contradict_each_other_are_rejected(
    settings: dict[str, Any], field: str, told: str
) -> None:
    with pytest.raises(Rejected) as caught:
        cell_settings.accept(settings)
    assert caught.value.fields == {f"settings.{field}": told}
