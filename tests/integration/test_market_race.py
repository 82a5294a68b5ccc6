"""Many buyers race for the last core of a cell: one gets it, each time, and every credit is somewhere."""

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
