"""Property tests of quota prices: larger orders never cost less, sums are exact, and splitting saves nothing."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.pricing.price_formula import (
    FULL_MILLI,
    LARGEST,
    UNIT,
    PricePart,
    base_checked,
    curve_checked,
    factor,
    part_of,
    priced,
    repriced,
    scarcity,
    share_with,
    total,
)
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import AXIS, CPU, NAMES, PORTS, SIZE, ZERO

BASE = {"cpu": 20_000, "ram": 2_500, "disk": 50, "disk_bandwidth": 20_000, "accelerators": 500_000}
CURVE = ((500, 1000), (800, 1300), (950, 2000), (1000, 3000))
EMPTY = (0,) * SIZE

# At the greatest prices, factors and times below, the sum of two such orders fits 64 bits.
vectors = st.tuples(*[st.integers(0, 2**17 * UNIT.get(name, 1)) for name in NAMES])
shares = st.tuples(*[st.integers(0, 1200)] * SIZE)
seconds = st.integers(1, 400 * 86400)
bases = st.fixed_dictionaries({}, optional={name: st.integers(0, 10**7) for name in UNIT})
factors = st.integers(1, 5000)


@st.composite
def curves(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    at = sorted(draw(st.sets(st.integers(0, 1200), max_size=6)))
    heights = sorted(draw(st.lists(st.integers(1, 9000), min_size=len(at), max_size=len(at))))
    return tuple(zip(at, heights, strict=True))


def one_core_month(**changed: object) -> tuple[PricePart, ...]:
    asked: dict = {
        "amounts": (1000, 0, 0, 0, 0, 0),
        "seconds": 30 * 86400,
        "base": BASE,
        "band_price_milli": 1000,
        "curve": CURVE,
        "sold_share_milli": EMPTY,
        **changed,
    }
    return priced(**asked)


def test_a_core_for_a_month_costs_its_hours_times_its_price() -> None:
    (part,) = one_core_month()
    assert part.amount == total([part]) == 720 * 20_000
    assert (part.resource, part.quantity, part.hours, part.scarcity_milli) == ("cpu", 1000, 720, 1000)


def test_band_and_scarcity_multiply() -> None:
    (part,) = one_core_month(band_price_milli=1500, sold_share_milli=(1000, *EMPTY[1:]))
    assert part.amount == 720 * 20_000 * 3 * 3 // 2


def test_each_part_is_rounded_up_by_itself() -> None:
    parts = priced((1, 1, 1, 1, 1, 1), 1, BASE, 1000, CURVE, EMPTY)
    assert [part.amount for part in parts] == [1, 1, 1, 1, 1, 0]
    assert total(parts) == 5


def test_ports_are_free_and_shown() -> None:
    (part,) = priced((0,) * PORTS + (7,), 3600, BASE, 1000, CURVE, EMPTY)
    assert (part.resource, part.quantity, part.amount) == ("ports", 7, 0)


def test_the_curve_is_straight_between_its_points_and_level_outside() -> None:
    found = [factor(CURVE, share) for share in (0, 500, 650, 800, 875, 1000, 5000)]
    assert found == [1000, 1000, 1150, 1300, 1650, 3000, 3000]
    assert factor((), 900) == FULL_MILLI


def test_an_order_pays_the_mean_of_the_curve_it_moves_along() -> None:
    assert scarcity(CURVE, 500, 800) == 1150
    assert scarcity(CURVE, 0, 500) == 1000
    assert scarcity(CURVE, 0, 1000) == (500 * 1000 + 300 * 1150 + 150 * 1650 + 50 * 2500) / Fraction(1000)


@given(vectors, seconds, bases, factors, curves(), shares, vectors)
def test_the_price_is_the_sum_of_parts_each_exact_to_the_micro_credit(
    amounts, time, base, band, curve, sold, room
) -> None:
    parts = priced(amounts, time, base, band, curve, sold, share_with(sold, amounts, room))
    assert [part.resource for part in parts] == [NAMES[i] for i, amount in enumerate(amounts) if amount]
    for part in parts:
        exact = (
            Fraction(part.quantity, UNIT.get(part.resource, 1))
            * part.hours
            * part.base
            * part.band_milli
            / 1000
            * part.scarcity_milli
            / 1000
        )
        assert part.amount == ceil(exact)
        assert part_of(part.as_json()) == part
    assert total(parts) == sum(part.amount for part in parts)


@given(vectors, seconds, bases, bases, factors, curves(), curves(), shares, vectors)
def test_parts_at_other_prices_are_what_they_would_have_been(
    amounts, time, base, other, band, curve, bent, sold, room
) -> None:
    then = share_with(sold, amounts, room)
    parts = priced(amounts, time, base, band, curve, sold, then)
    assert repriced(parts, other, bent) == priced(amounts, time, other, band, bent, sold, then)


@given(vectors, vectors, seconds, bases, factors, curves(), shares, vectors)
def test_more_never_costs_less(amounts, more, time, base, band, curve, sold, room) -> None:
    larger = tuple(a + b for a, b in zip(amounts, more, strict=True))
    before = priced(amounts, time, base, band, curve, sold, share_with(sold, amounts, room))
    after = priced(larger, time, base, band, curve, sold, share_with(sold, larger, room))
    assert total(before) <= total(after)


@given(vectors, seconds, seconds, bases, factors, curves(), shares)
def test_longer_never_costs_less_and_a_split_period_costs_the_same_but_for_rounding(
    amounts, first, second, base, band, curve, sold
) -> None:
    whole = priced(amounts, first + second, base, band, curve, sold)
    halves = [priced(amounts, time, base, band, curve, sold) for time in (first, second)]
    assert max(total(half) for half in halves) <= total(whole)
    assert 0 <= sum(total(half) for half in halves) - total(whole) <= len(whole)


@given(vectors, seconds, bases, factors, curves(), shares, shares, vectors)
def test_scarcer_never_costs_less(amounts, time, base, band, curve, sold, more, room) -> None:
    scarcer = tuple(a + b for a, b in zip(sold, more, strict=True))
    before = priced(amounts, time, base, band, curve, sold, share_with(sold, amounts, room))
    after = priced(amounts, time, base, band, curve, scarcer, share_with(scarcer, amounts, room))
    assert total(before) <= total(after)


@given(
    st.integers(1, 2**36), st.integers(1, 2**36), st.integers(1, 2**42), seconds, factors, curves(), st.integers(0, 900)
)
def test_an_order_in_pieces_one_after_the_other_costs_the_same_but_for_rounding(
    first, second, room, time, band, curve, share
) -> None:
    def order(amount: int, sold: Fraction) -> tuple[int, Fraction]:
        asked, most, shared = (amount, *ZERO[1:]), (room, *ZERO[1:]), (sold, *EMPTY[1:])
        then = share_with(shared, asked, most)
        return total(priced(asked, time, BASE, band, curve, shared, then)), then[CPU]

    whole, _ = order(first + second, Fraction(share))
    one, then = order(first, Fraction(share))
    two, _ = order(second, then)
    assert 0 <= one + two - whole <= 1


def test_where_nothing_may_be_sold_everything_counts_as_sold() -> None:
    assert share_with((200, 1300), (5, 5), (0, 0)) == (1000, 1300)


def test_what_does_not_fit_64_bits_is_refused_by_name() -> None:
    with pytest.raises(Rejected) as refused:
        one_core_month(amounts=(LARGEST + 1, 0, 0, 0, 0, 0))
    assert (refused.value.code, list(refused.value.fields)) == ("too-large", ["amounts.cpu"])
    with pytest.raises(Rejected) as refused:
        one_core_month(amounts=(LARGEST, 0, 0, 0, 0, 0))
    assert (refused.value.code, list(refused.value.fields)) == ("too-large", ["amounts.cpu"])
    # Each part fits, their sum does not.
    with pytest.raises(Rejected, match="more than the portal can compute") as refused:
        priced((1000, 2**30, 0, 0, 0, 0), 3600, {"cpu": LARGEST, "ram": 1}, 1000, (), EMPTY)
    assert refused.value.fields.keys() == {"amounts"}


def test_the_largest_price_is_counted() -> None:
    (part,) = priced((1000, 0, 0, 0, 0, 0), 3600, {"cpu": LARGEST}, 1000, (), EMPTY)
    assert total([part]) == LARGEST
    with pytest.raises(Rejected):
        priced((1000, 0, 0, 0, 0, 0), 3601, {"cpu": LARGEST}, 1000, (), EMPTY)
    with pytest.raises(Rejected) as refused:
        total([part, part])
    assert refused.value.code == "too-large"


@pytest.mark.parametrize(
    "curve, field",
    [
        ("500", "curve"),
        (5, "curve"),
        ([[500]], "curve.0"),
        (["ab"], "curve.0"),
        ([[0, 1000], [0, 2000]], "curve.1"),
        ([[0, 1000], [500, 999]], "curve.1"),
        ([[0, 0]], "curve.0"),
        ([[-1, 1000]], "curve.0"),
        ([[0, True]], "curve.0"),
        ([[0, 1000.5]], "curve.0"),
        ([[i, 1000] for i in range(101)], "curve"),
    ],
)
def test_a_curve_that_is_none_is_refused_by_its_point(curve, field) -> None:
    with pytest.raises(Rejected) as refused:
        curve_checked(curve)
    assert list(refused.value.fields) == [field]


@pytest.mark.parametrize(
    "base, field",
    [
        ([], "base"),
        ({"gpu": 1}, "base.gpu"),
        ({"ports": 1}, "base.ports"),
        ({"cpu": -1}, "base.cpu"),
        ({"cpu": 1.5}, "base.cpu"),
        ({"cpu": True}, "base.cpu"),
        ({"ram": 10**15 + 1}, "base.ram"),
    ],
)
def test_prices_that_are_none_are_refused_by_their_resource(base, field) -> None:
    with pytest.raises(Rejected) as refused:
        base_checked(base)
    assert list(refused.value.fields) == [field]


def test_what_is_accepted_is_kept_in_the_order_of_the_axis() -> None:
    assert list(base_checked({"disk": 1, "cpu": 2})) == ["cpu", "disk"]
    assert curve_checked([[0, 1], (7, 1)]) == [(0, 1), (7, 1)]
    assert {resource.name for resource in AXIS} == UNIT.keys() | {"ports"}
