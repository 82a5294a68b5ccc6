"""Tests of many buyers who order the last core of a cell at once: one of them gets it, and no credit is lost."""

from __future__ import annotations

import pytest

from tests.bench.quota_race import KINDS, Race


@pytest.mark.django_db(transaction=True)
def test_the_last_core_is_sold_once_each_time() -> None:
    rounds = len(KINDS)
    race = Race(buyers=12)
    told = race.run(rounds)
    assert race.problems == []
    assert told["attempts"] == 12 * rounds
    assert told["won"] >= rounds
