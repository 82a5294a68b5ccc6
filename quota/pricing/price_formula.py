"""Exact prices of quota for a period, in whole micro-credits (§2.5). Pure.

    part = quantity × hours × base price × band factor × scarcity factor, rounded up once
    price = sum of the parts

The *sold share* is the part of the sellable quota that is sold. A curve gives the *scarcity factor* for each sold
share. An order pays the mean of the curve between the sold shares before and after the order. So several small orders
cost the same as one large order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from quota.vocabulary.errors import invalid
from quota.vocabulary.money import MOST as LARGEST
from quota.vocabulary.resources import NAMES, SIZE

FULL_MILLI = 1000  # the whole of something, or a factor of one, in thousandths
LARGEST_FACTOR_MILLI = 1_000_000  # a thousand times the base price
LARGEST_BASE = 10**15  # a thousand million credits per unit and hour

# The quantity of a base price, in the axis' unit: a core, a GiB of RAM, a GiB of disk, a GiB/s, an accelerator.
UNIT: Mapping[str, int] = {"cpu": 1000, "ram": 2**30, "disk": 2**30, "disk_bandwidth": 2**30, "accelerators": 1000}
FREE = frozenset(NAMES) - UNIT.keys()  # ports

Curve = Sequence[tuple[int, int]]
"""Pairs `(sold share in thousandths, factor in thousandths)`. Shares rise, and factors never fall."""
Share = int | Fraction


@dataclass(frozen=True, slots=True)
class PricePart:
    """The part of a price that one resource costs.

    `quantity`: in the unit of the resource axis. `base`: price in micro-credits per hour for one core, GiB, GiB/s or
    accelerator. `band_milli`: the band's factor. `sold_milli`, `then_milli`: the sold share before and after the order.
    `scarcity_milli`: the mean of the curve between these shares. `amount`: micro-credits.
    """

    resource: str
    quantity: int
    hours: Fraction
    base: int
    band_milli: int
    sold_milli: Fraction
    then_milli: Fraction
    scarcity_milli: Fraction
    amount: int

    def as_json(self) -> dict[str, Any]:
        """Return this part of the price for JSON. Numbers that may be fractions become text, such as `"1441/2"`."""
        return {name: str(value) if name in _EXACT else value for name, value in asdict(self).items()}


_TOO_EXPENSIVE = "the price is more than the portal can compute; request a smaller amount or a shorter period"
_EXACT = frozenset({"hours", "sold_milli", "then_milli", "scarcity_milli"})


def part_of(given: Mapping[str, Any]) -> PricePart:
    """Return the `PricePart` from which `PricePart.as_json` made the mapping `given`."""
    exact = {name: Fraction(given[name]) for name in _EXACT}
    return PricePart(**{**given, **exact})


def priced(
    amounts: Sequence[int],
    seconds: int | Fraction,
    base: Mapping[str, int],
    band_price_milli: int,
    curve: Curve,
    sold_share_milli: Sequence[Share],
    then_share_milli: Sequence[Share] | None = None,
) -> tuple[PricePart, ...]:
    """Return the parts of the price of `amounts` for `seconds`, one per requested resource.

    `amounts`: one quantity per resource, in the order of `NAMES`. `base`: prices in micro-credits per hour for one
    core, GiB, GiB/s or accelerator; resources without a base price are free. `sold_share_milli`: per resource, how many
    thousandths of the sellable quota are sold before the order. `then_share_milli`: the same after the order; by
    default `sold_share_milli`. Raises `Rejected("too-large")` if the price exceeds 64 bits.
    """
    then = sold_share_milli if then_share_milli is None else then_share_milli
    hours = Fraction(seconds) / 3600
    parts = tuple(
        _part(name, quantity, hours, base.get(name, 0), band_price_milli, curve, Fraction(sold), Fraction(after))
        for name, quantity, sold, after in zip(NAMES, amounts[:SIZE], sold_share_milli[:SIZE], then[:SIZE], strict=True)
        if quantity
    )
    total(parts)
    return parts


def repriced(parts: Iterable[PricePart], base: Mapping[str, int], curve: Curve) -> tuple[PricePart, ...]:
    """Return the parts of a price, calculated again with the base prices and the curve of another price list.

    The sold shares stay the same. Raises `Rejected("too-large")` if the price exceeds 64 bits.
    """
    again = tuple(
        _part(
            part.resource,
            part.quantity,
            part.hours,
            base.get(part.resource, 0),
            part.band_milli,
            curve,
            part.sold_milli,
            part.then_milli,
        )
        for part in parts
    )
    total(again)
    return again


def total(parts: Iterable[PricePart]) -> int:
    """Return the sum of the parts of a price in micro-credits. Raises `Rejected("too-large")` if it exceeds 64 bits."""
    price = sum(part.amount for part in parts)
    if price > LARGEST:
        raise invalid("amounts", _TOO_EXPENSIVE, "too-large")
    return price


def scarcity(curve: Curve, sold_milli: Share, then_milli: Share) -> Fraction:
    """Return the exact mean of the scarcity curve (the price factor by sold share) between two sold shares.

    The shares and the mean are in thousandths. The shares may be equal.
    """
    low, high = sorted((Fraction(sold_milli), Fraction(then_milli)))
    if low == high:
        return factor(curve, low)
    bends = [low, *(Fraction(share) for share, _ in curve if low < share < high), high]
    heights = [factor(curve, bend) for bend in bends]
    area = sum(
        ((bends[i + 1] - bends[i]) * (heights[i] + heights[i + 1]) / 2 for i in range(len(bends) - 1)),
        start=Fraction(0),
    )
    return area / (high - low)


def factor(curve: Curve, share_milli: Share) -> Fraction:
    """Return the value of the scarcity curve (the price factor by sold share) at one sold share.

    The curve is linear between its points, and constant before the first and after the last point.
    """
    if not curve:
        return Fraction(FULL_MILLI)
    if share_milli <= curve[0][0]:
        return Fraction(curve[0][1])
    for (left, low), (right, high) in pairwise(curve):
        if share_milli <= right:
            return low + (high - low) * (Fraction(share_milli) - left) / (right - left)
    return Fraction(curve[-1][1])


def share_with(
    sold_share_milli: Sequence[Share], amounts: Sequence[int], sellable: Sequence[int]
) -> tuple[Fraction, ...]:
    """Return the sold share of each resource after a further sale of `amounts`.

    A resource without sellable quota counts as completely sold.
    """
    return tuple(
        Fraction(sold) + Fraction(FULL_MILLI * amount, most) if most > 0 else Fraction(max(sold, FULL_MILLI))
        for sold, amount, most in zip(sold_share_milli, amounts, sellable, strict=True)
    )


def base_checked(given: object, *, field: str = "base") -> dict[str, int]:
    """Check the prices in a request, and return them by resource for a price list.

    Raises `Rejected` if an entry is not valid; the error names the entry. `field`: the name of the request's field with
    the prices.
    """
    if not isinstance(given, Mapping):
        raise invalid(
            field,
            'the prices are not an object; give micro-credits per unit and hour by resource, such as {"cpu": 1200}',
        )
    for name, price in given.items():
        if name in FREE:
            raise invalid(f"{field}.{name}", "ports are free, so they have no price; remove this price")
        if name not in UNIT:
            raise invalid(f"{field}.{name}", f"the resource {name!r} is unknown; give one of {', '.join(UNIT)}")
        if not _whole(price) or not 0 <= price <= LARGEST_BASE:
            raise invalid(
                f"{field}.{name}",
                f"the price of {name} is not accepted; give whole micro-credits from 0 to {LARGEST_BASE}",
            )
    return {name: int(given[name]) for name in UNIT if name in given}


def curve_checked(given: object, *, field: str = "curve") -> list[tuple[int, int]]:
    """Check the scarcity curve in a request, and return its points for a price list.

    Raises `Rejected` if a point is not valid; the error names the point. `field`: the name of the request's field with
    the curve.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise invalid(
            field, "the scarcity curve is not a list; give pairs of sold share and factor, both in thousandths"
        )
    if len(given) > 100:
        raise invalid(field, f"the scarcity curve has {len(given)} points; give at most 100")
    points: list[tuple[int, int]] = []
    for index, point in enumerate(given):
        here = f"{field}.{index}"
        if isinstance(point, str) or not isinstance(point, Sequence) or len(point) != 2:
            raise invalid(
                here,
                "this point of the scarcity curve is not a pair; give a sold share and a factor, both in thousandths",
            )
        share, height = point
        if not (_whole(share) and _whole(height)):
            raise invalid(here, "the sold share or the factor is not a whole number; give both in whole thousandths")
        if not (0 <= share <= 10 * FULL_MILLI and 1 <= height <= LARGEST_FACTOR_MILLI):
            raise invalid(
                here,
                f"this point of the scarcity curve is out of range; give a sold share from 0 to {10 * FULL_MILLI} and a"
                f" factor from 1 to {LARGEST_FACTOR_MILLI}, both in thousandths",
            )
        if points and share <= points[-1][0]:
            raise invalid(
                here,
                f"the sold share {share} is not above the share of the previous point of the scarcity curve; give more"
                f" than {points[-1][0]}",
            )
        if points and height < points[-1][1]:
            raise invalid(
                here,
                f"the factor {height} is below the factor of the previous point of the scarcity curve; give at least"
                f" {points[-1][1]}",
            )
        points.append((share, height))
    return points


def _part(
    name: str, quantity: int, hours: Fraction, base: int, band_milli: int, curve: Curve, sold: Fraction, then: Fraction
) -> PricePart:
    if quantity > LARGEST:
        raise invalid(f"amounts.{name}", f"the amount of {name} is too large; give at most {LARGEST}", "too-large")
    scarce = scarcity(curve, sold, then)
    exact = Fraction(quantity * base * band_milli, UNIT.get(name, 1) * FULL_MILLI) * hours * scarce / FULL_MILLI
    amount = -(-exact.numerator // exact.denominator)
    if amount > LARGEST:
        raise invalid(f"amounts.{name}", _TOO_EXPENSIVE, "too-large")
    return PricePart(name, quantity, hours, base, band_milli, sold, then, scarce, amount)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
