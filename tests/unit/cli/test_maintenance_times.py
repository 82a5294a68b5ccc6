"""Tests of the times of maintenance windows, as people write them."""

from __future__ import annotations

import pytest

from portal.cli.failure import CommandFailed
from portal.cli.maintenance import _moment


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2027-01-31T08:00", "UTC", "2027-01-31T08:00:00+00:00"),
        ("2027-01-31T08:00", "Europe/Berlin", "2027-01-31T08:00:00+01:00"),
        ("2027-07-31T08:00", "Europe/Berlin", "2027-07-31T08:00:00+02:00"),
        ("2027-10-31T02:30+01:00", "Europe/Berlin", "2027-10-31T02:30:00+01:00"),
    ],
)
def test_a_time_has_its_offset_or_that_of_the_time_zone(text: str, zone: str, expected: str) -> None:
    assert _moment("from", text, zone) == expected


@pytest.mark.parametrize(
    ("text", "zone", "problem"),
    [
        ("2027-10-31T02:30", "Europe/Berlin", "occurs twice in Europe/Berlin"),
        ("2027-03-28T02:30", "Europe/Berlin", "does not exist in Europe/Berlin"),
        ("soon", "UTC", "is not a time"),
        ("2027-01-31T08:00", "Europe/Nowhere", "time zone Europe/Nowhere"),
    ],
)
def test_an_unclear_time_is_rejected_with_the_cure(text: str, zone: str, problem: str) -> None:
    with pytest.raises(CommandFailed, match=problem):
        _moment("until", text, zone)
