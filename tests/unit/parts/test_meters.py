"""Tests of meters: positions of use, reservation and limit, colours, and bars that are split by owner."""

from __future__ import annotations

from portal.parts.meters import COLOURS, Share, colour_of, meter, split_meter


def test_limits_above_the_capacity_do_not_paint_a_half_empty_cell_red() -> None:
    found = meter("CPU", capacity=100, used=45, reserved=60, limit=125, format_value=str)
    assert found.tone == "good"
    assert (found.capacity_width, found.used_width, found.reserved_width) == ("80.00%", "36.00%", "48.00%")
    assert found.limit_x == "100.00%"
    assert found.text == "45% used · 60% reserved · 125% limits"
    assert found.name == "CPU: used 45, reserved 60, limits 125, capacity 100"


def test_the_colour_follows_the_use() -> None:
    tones = [
        meter("CPU", capacity=100, used=used, reserved=0, limit=500, format_value=str).tone for used in (89, 90, 101)
    ]
    assert tones == ["good", "wait", "bad"]


def test_unknown_amounts_are_not_drawn() -> None:
    found = meter("CPU", capacity=0, used=None, reserved=None, limit=3, format_value=str)
    assert (found.used_width, found.reserved_width, found.limit_x) == ("", "", "100.00%")
    assert found.text == "– limits"
    nothing = meter("CPU", capacity=0, used=None, reserved=None, limit=None, format_value=str)
    assert nothing.name == "CPU: no amount is known, capacity 0"


def test_shares_follow_one_another_and_empty_ones_are_left_out() -> None:
    shares = [Share("a", 30, 1), Share("b", 0, 2), Share("c", 20, 3)]
    found = split_meter("Limits", shares, scale=200, capacity=100, format_value=str)
    assert [(one.colour, one.x, one.width, one.name) for one in found.shares] == [
        (1, "0.00%", "15.00%", "a: 30"),
        (3, "15.00%", "10.00%", "c: 20"),
    ]
    assert (found.total, found.capacity_width) == ("50 of 100", "50.00%")
    assert split_meter("Limits", shares, scale=1, format_value=str).shares[0].width == "60.00%"


def test_shares_after_the_last_colour_are_grey() -> None:
    assert [colour_of(place) for place in (0, COLOURS - 1, COLOURS, 99)] == [1, COLOURS, 0, 0]
