"""Tests of timelines: positions in the frame, merged marks, and times that a user can or cannot choose."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.gallery.examples import EXAMPLES
from portal.parts.moments import Moment, moment_of
from portal.parts.timelines import Mark, State, Timeline, Track, timeline

BEGIN = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
END = BEGIN + 10 * HOUR


def drawn(*tracks: Track) -> Timeline:
    return timeline("t", tracks, name="t", since=BEGIN, until=END, format_time=lambda at: f"{at:%H:%M}")


def percent(text: str) -> float:
    assert text.endswith("%")
    return float(text[:-1])


def test_a_state_is_as_wide_as_its_time_within_the_period() -> None:
    states = [
        State("old", BEGIN - 5 * HOUR, BEGIN - HOUR),
        State("up", BEGIN - HOUR, BEGIN + HOUR),
        State("on", BEGIN + 8 * HOUR, None),
    ]
    (track,) = drawn(Track("web/0", states)).tracks
    assert [(one.title, one.x, one.width) for one in track.states] == [
        ("up", "0.00%", "10.00%"),
        ("on", "80.00%", "20.00%"),
    ]
    assert track.states[1].name == "web/0, on: 08:00 to now"


@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 20)), max_size=30))
def test_everything_stays_inside_the_frame(pairs) -> None:
    states = [State("s", BEGIN + a * HOUR, BEGIN + (a + b) * HOUR) for a, b in pairs]
    (track,) = drawn(Track("t", states, [Mark("m", BEGIN + a * HOUR) for a, _ in pairs])).tracks
    for state in track.states:
        assert percent(state.x) >= 0
        assert percent(state.width) > 0
        assert percent(state.x) + percent(state.width) <= 100.01
    assert all(0 <= percent(mark.x) <= 100 for mark in track.marks)
    assert sum(mark.number for mark in track.marks) == sum(0 <= a <= 10 for a, _ in pairs)


def test_marks_at_almost_the_same_time_become_one_with_the_worst_tone() -> None:
    tones = ("good", "bad", "plain", "wait", "good")
    marks = [Mark(f"e{n}", BEGIN + HOUR + n * dt.timedelta(minutes=2), tone) for n, tone in enumerate(tones)]
    (track,) = drawn(Track("web/0", (), [*marks, Mark("late", BEGIN + 5 * HOUR, link="/x/")])).tracks
    near, late = track.marks
    assert (near.number, near.tone, near.link) == (5, "bad", "#t-1")
    assert near.name == "web/0, 5 events, 01:00 to 01:08: e0, e1, e2 …"
    assert (late.number, late.link, late.name) == (1, "/x/", "web/0, late: 05:00")


@pytest.mark.parametrize(
    ("tones", "worst"), [(("plain", "good", "wait"), "wait"), (("plain", "good"), "good"), (("wait", "bad"), "bad")]
)
def test_the_worst_tone_wins(tones, worst) -> None:
    marks = [Mark("e", BEGIN + HOUR, tone) for tone in tones]
    ((mark,),) = (track.marks for track in drawn(Track("t", (), marks)).tracks)
    assert mark.tone == worst


def test_a_short_state_at_the_end_is_visible_and_inside_the_frame() -> None:
    (track,) = drawn(Track("t", [State("s", END - dt.timedelta(seconds=1), END)])).tracks
    assert (track.states[0].x, track.states[0].width) == ("99.60%", "0.40%")


def test_each_state_and_event_has_a_row_in_the_order_of_time() -> None:
    found = drawn(Track("a", [State("up", BEGIN + HOUR, None)], [Mark("m", BEGIN)]), Track("b", (), [Mark("n", END)]))
    assert [(row.track, row.title, row.since, row.until) for row in found.rows] == [
        ("a", "m", "00:00", ""),
        ("a", "up", "01:00", "now"),
        ("b", "n", "10:00", ""),
    ]
    anchors = [row.anchor for row in found.rows]
    assert len(set(anchors)) == 3
    assert found.tracks[0].states[0].link.removeprefix("#") in anchors
    assert drawn(Track("a")).empty


def test_a_timeline_of_no_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs a period"):
        timeline("t", [], name="t", since=BEGIN, until=BEGIN, format_time=str)


ZURICH = ZoneInfo("Europe/Zurich")


def chosen(text: str | None, *, zone: dt.tzinfo = dt.UTC, **more) -> Moment:
    return moment_of({} if text is None else {"at": text}, since=BEGIN, until=END, zone=zone, **more)


def test_without_a_moment_the_page_shows_the_present() -> None:
    moment = chosen(None)
    assert (moment.at, moment.live, moment.problem) == (END, True, "")


def test_a_time_without_offset_is_in_the_time_zone_of_the_user() -> None:
    assert chosen("2026-03-01T05:00", zone=ZURICH).at == BEGIN + 4 * HOUR
    moment = chosen("2026-03-01T05:00:00Z", zone=ZURICH)
    assert moment.at == BEGIN + 5 * HOUR
    assert (moment.fields["at"], moment.zone, moment.offset_s) == ("2026-03-01T06:00:00", "CET", 3600)
    assert moment.first_s <= moment.at_s <= moment.last_s


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("yesterday", END, "'yesterday' is not a time. Write a time such as 2026-03-01T10:00:00."),
        ("2026-02-01", BEGIN, "There is no data for 2026-02-01 00:00:00. The page shows 2026-03-01 00:00:00"),
        ("2027-01-01T00:00", END, "The page shows 2026-03-01 10:00:00, the nearest time with data."),
        ("0001-01-01T00:00+14:00", END, "is not a time"),
    ],
)
def test_an_unusable_moment_is_explained(text, at, words) -> None:
    moment = chosen(text)
    assert moment.at == at
    assert words in moment.problem
    assert not moment.live


def test_steps_lead_to_other_moments_of_the_period_only() -> None:
    moment = chosen("2026-03-01T00:30:00", events=[BEGIN + HOUR, BEGIN + 2 * HOUR])
    back = {step.title: step.changes for step in moment.back}
    forward = {step.title: step.changes for step in moment.forward}
    assert back["− 1 h"] is None
    assert back["− 1 min"] == {"at": "2026-03-01T00:29:00+00:00"}
    assert back["Previous event"] is None
    assert forward["Next event"] == {"at": "2026-03-01T01:00:00+00:00"}
    assert "+ 1 d" not in forward


def test_an_hour_is_an_hour_when_clocks_change() -> None:
    since = dt.datetime(2026, 10, 24, tzinfo=dt.UTC)
    moment = moment_of({"at": "2026-10-25T00:30:00Z"}, since=since, until=since + 48 * HOUR, zone=ZURICH)
    (step,) = (step for step in moment.forward if step.title == "+ 1 h")
    assert step.changes == {"at": "2026-10-25T02:30:00+01:00"}


def test_the_examples_of_the_gallery_cover_each_part() -> None:
    assert len(EXAMPLES) == 9
    for _title, template, name, examples in EXAMPLES:
        assert template.startswith("parts/")
        assert len(examples) >= 2, name
        for example in examples:
            assert example({"sort": "cpu", "at": "x"}) is not None
