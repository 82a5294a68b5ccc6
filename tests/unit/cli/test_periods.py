"""Tests of periods on the command line: days in the tenant's time zone, and times with an offset."""

from __future__ import annotations

import datetime as dt

import pytest

from portal.cli import periods
from portal.cli.failure import CommandFailed

NOW = dt.datetime(2026, 3, 10, 15, 30, tzinfo=dt.UTC)


def period(
    begin: str | None = None, until: str | None = None, days: int | None = None, zone: str = "UTC"
) -> tuple[str, str]:
    found = periods.period(begin, until, days, time_zone=zone, now=NOW)
    return (found.begins.isoformat() if found.begins else "now", found.ends.isoformat())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        pytest.param({"days": 1}, ("now", "2026-03-11T00:00:00+00:00"), id="today-alone"),
        pytest.param({"days": 30}, ("now", "2026-04-09T00:00:00+00:00"), id="thirty-days"),
        pytest.param({"until": "2026-03-31"}, ("now", "2026-04-01T00:00:00+00:00"), id="last-day-included"),
        pytest.param({"begin": "2026-03-10", "days": 2}, ("now", "2026-03-12T00:00:00+00:00"), id="from-today"),
        pytest.param(
            {"begin": "2026-04-01", "until": "2026-04-30"},
            ("2026-04-01T00:00:00+00:00", "2026-05-01T00:00:00+00:00"),
            id="a-month",
        ),
        pytest.param(
            {"begin": "2028-02-29", "days": 1},
            ("2028-02-29T00:00:00+00:00", "2028-03-01T00:00:00+00:00"),
            id="leap-day",
        ),
        pytest.param(
            {"begin": "2026-03-29", "days": 1, "zone": "Europe/Berlin"},
            ("2026-03-28T23:00:00+00:00", "2026-03-29T22:00:00+00:00"),
            id="a-day-of-23-hours",
        ),
        pytest.param(
            {"begin": "2026-10-25", "until": "2026-10-25", "zone": "Europe/Berlin"},
            ("2026-10-24T22:00:00+00:00", "2026-10-25T23:00:00+00:00"),
            id="a-day-of-25-hours",
        ),
        pytest.param(
            {"days": 1, "zone": "Pacific/Kiritimati"}, ("now", "2026-03-11T10:00:00+00:00"), id="tomorrow-there"
        ),
        pytest.param(
            {"begin": "2026-04-01T08:00+02:00", "until": "2026-04-01T20:00:30.9+02:00"},
            ("2026-04-01T06:00:00+00:00", "2026-04-01T18:00:30+00:00"),
            id="moments",
        ),
        pytest.param(
            {"begin": "2026-04-01T08:00Z", "days": 2},
            ("2026-04-01T08:00:00+00:00", "2026-04-03T08:00:00+00:00"),
            id="days-from-a-moment",
        ),
    ],
)
def test_what_is_meant(given: dict[str, object], wanted: tuple[str, str]) -> None:
    assert period(**given) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        pytest.param({}, "until", id="no-end"),
        pytest.param({"until": "2026-04-01", "days": 2}, "until", id="two-ends"),
        pytest.param({"until": "2026-03-09"}, "until", id="over"),
        pytest.param({"begin": "2026-05-01", "until": "2026-04-01"}, "until", id="backwards"),
        pytest.param({"until": "2026-02-30"}, "until", id="no-such-day"),
        pytest.param({"begin": "tomorrow", "days": 1}, "from", id="words"),
        pytest.param({"begin": "2026-04-01T08:00", "days": 1}, "from", id="no-zone"),
        pytest.param({"until": "9999-12-31"}, "until", id="end-of-time"),
        pytest.param({"begin": "0001-01-01", "days": 1, "zone": "Asia/Tokyo"}, "from", id="beginning-of-time"),
        pytest.param({"begin": "9999-12-30", "days": 36_500}, "days", id="past-the-end-of-time"),
    ],
)
def test_what_makes_no_sense(given: dict[str, object], field: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        period(**given)  # type: ignore[arg-type]
    assert (failed.value.status, list(failed.value.fields)) == (2, [field])


def test_a_zone_that_this_machine_does_not_know() -> None:
    with pytest.raises(CommandFailed, match="has no data about the tenant's time zone Mars/Olympus"):
        period(days=1, zone="Mars/Olympus")


def test_months_and_days() -> None:
    assert (periods.month("2027-01"), periods.day("from", "2028-02-29")) == ("2027-01", "2028-02-29")
    for wrong in ("2027-13", "2027-1", "2027", "2027-00"):
        with pytest.raises(CommandFailed):
            periods.month(wrong)
    for wrong in ("2027-02-29", "2027-2-1", "today"):
        with pytest.raises(CommandFailed):
            periods.day("from", wrong)
