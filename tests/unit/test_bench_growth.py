"""Tests of the bench `growth`: it must report the path whose cost grows most."""

from __future__ import annotations

import math

import pytest

from tests.bench.growth import Figure, exponent, steepest


@pytest.mark.parametrize(("large", "expected"), [(7.0, 0.0), (14.0, 0.5), (28.0, 1.0), (112.0, 2.0), (3.5, -0.5)])
def test_exponent_is_the_power_of_the_size(large: float, expected: float) -> None:
    assert exponent(7.0, large, 4.0) == expected


def test_exponent_of_nothing_is_not_a_number() -> None:
    assert math.isnan(exponent(0.0, 1.0, 4.0))


def test_steepest_path_of_a_noticeable_cost_is_reported() -> None:
    paths = {
        "/flat": (Figure(80.0, 0.0), Figure(88.0, 0.0)),
        "/cheap": (Figure(1.0, 0.0), Figure(4.0, 0.0)),
        "/steep": (Figure(10.0, 0.0), Figure(20.0, 0.0)),
    }
    pair, more = steepest(paths, 4.0)
    assert pair == paths["/steep"]
    assert more["path"] == "/steep"
    assert list(more["steepest"]) == ["/steep", "/flat"]
    assert more["sum"] == [91.0, 112.0]
