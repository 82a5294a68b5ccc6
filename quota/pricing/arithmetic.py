"""Prices of a vector of quota for a period: pure, exact, in whole micro-credits (§2.5).

    part = quantity × hours × base price × band factor × scarcity factor, rounded up once
    price = sum of the parts

The *scarcity factor* is read from a curve. Its input is the share of the sellable quota that is already sold. An order
moves along the curve itself, from the share before it to the share after it, and pays the mean of the curve between the
two. So an order costs what the same order costs when it is placed in pieces, one after the other: nobody gains by
splitting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.money import MOST as LARGEST
from quota.vocabulary.resources import NAMES, SIZE

FULL_MILLI = 1000  # a share of everything; also a factor of one
LARGEST_FACTOR_MILLI = 1_000_000  # a thousand times the base price
LARGEST_BASE = 10**15  # a thousand million credits for a unit and an hour

# The quantity, in the axis' unit, that a base price is for: a core, a GiB, a GiB of disk, a GiB/s, an accelerator.
UNIT: Mapping[str, int] = {"cpu": 1000, "ram": 2**30, "disk": 2**30, "disk_bandwidth": 2**30, "accelerators": 1000}
FREE = frozenset(NAMES) - UNIT.keys()  # ports

Curve = Sequence[tuple[int, int]]
"""`(sold share in thousandths, factor in thousandths)`, rising in the first, never falling in the second."""
Share = int | Fraction


@dataclass(frozen=True, slots=True)
class PricePart:
    """The part of one resource in a price.

    `quantity`: in the axis' unit. `base`: micro-credits for one `UNIT` and hour. `band_milli`: the band's factor.
    `sold_milli`, `then_milli`: the sold share before and with this order. `scarcity_milli`: the mean of the curve
    between them. `amount`: micro-credits.
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
        """Return an exact value for JSON. Numbers that are not whole become fractions, `"1441/2"`."""
        return {name: str(value) if name in _EXACT else value for name, value in asdict(self).items()}


_EXACT = frozenset({"hours", "sold_milli", "then_milli", "scarcity_milli"})


def part_of(given: Mapping[str, Any]) -> PricePart:
    """The part that `as_json` wrote."""
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
    """The parts of the price of `amounts` (over the axis) for `seconds`, one for each resource that is asked for.

    `sold_share_milli`: per resource, the share sold before; `then_share_milli`: the share with this order, the same
    when not given. Resources without a base price cost nothing. Raises `Rejected("too-large")`.
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
    """Return the same price parts, for the same shares, recalculated with other base prices.

    Raises `Rejected("too-large")` if a price is too large.
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
    """The price: the sum of its parts, in micro-credits. Raises `Rejected("too-large")` past 64 bits."""
    price = sum(part.amount for part in parts)
    if price > LARGEST:
        detail = "costs more than the portal can compute; ask for less, or for a shorter time"
        raise Rejected("too-large", f"amounts: this {detail}", fields={"amounts": detail})
    return price


def scarcity(curve: Curve, sold_milli: Share, then_milli: Share) -> Fraction:
    """The mean of the curve between two shares; its value where they are one. Thousandths, exact."""
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
    """The curve at one share: straight between its points, level before the first and after the last."""
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
    """The sold shares once `amounts` are sold too. Where nothing may be sold, everything counts as sold."""
    return tuple(
        Fraction(sold) + Fraction(FULL_MILLI * amount, most) if most > 0 else Fraction(max(sold, FULL_MILLI))
        for sold, amount, most in zip(sold_share_milli, amounts, sellable, strict=True)
    )


def base_checked(given: object, *, field: str = "base") -> dict[str, int]:
    """Return checked prices by resource for a price list. Raises `Rejected`, which names the entry."""
    if not isinstance(given, Mapping):
        raise invalid(field, "give a mapping of resource names to micro-credits for one unit and hour")
    for name, price in given.items():
        if name in FREE:
            raise invalid(f"{field}.{name}", "ports are free; leave them out")
        if name not in UNIT:
            raise invalid(f"{field}.{name}", f"unknown resource; the resources are {', '.join(UNIT)}")
        if not _whole(price) or not 0 <= price <= LARGEST_BASE:
            raise invalid(f"{field}.{name}", f"give whole micro-credits between 0 and {LARGEST_BASE}")
    return {name: int(given[name]) for name in UNIT if name in given}


def curve_checked(given: object, *, field: str = "curve") -> list[tuple[int, int]]:
    """A scarcity curve as a price list holds it. Raises `Rejected` naming the point."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise invalid(field, "give a list of points [sold share in thousandths, factor in thousandths]")
    if len(given) > 100:
        raise invalid(field, f"at most 100 points, not {len(given)}")
    points: list[tuple[int, int]] = []
    for index, point in enumerate(given):
        here = f"{field}.{index}"
        if isinstance(point, str) or not isinstance(point, Sequence) or len(point) != 2:
            raise invalid(here, "give a pair [sold share in thousandths, factor in thousandths]")
        share, height = point
        if not (_whole(share) and _whole(height)):
            raise invalid(here, "give a pair of whole thousandths")
        if not (0 <= share <= 10 * FULL_MILLI and 1 <= height <= LARGEST_FACTOR_MILLI):
            raise invalid(
                here, f"give a share of 0 to {10 * FULL_MILLI} and a factor of 1 to {LARGEST_FACTOR_MILLI} thousandths"
            )
        if points and share <= points[-1][0]:
            raise invalid(here, f"its share is not above the one before, {points[-1][0]}")
        if points and height < points[-1][1]:
            raise invalid(here, "its factor is below the one before: what is scarcer never costs less")
        points.append((share, height))
    return points


def _part(
    name: str, quantity: int, hours: Fraction, base: int, band_milli: int, curve: Curve, sold: Fraction, then: Fraction
) -> PricePart:
    if quantity > LARGEST:
        raise invalid(f"amounts.{name}", f"more than {LARGEST}, the largest quantity there is", "too-large")
    scarce = scarcity(curve, sold, then)
    exact = Fraction(quantity * base * band_milli, UNIT.get(name, 1) * FULL_MILLI) * hours * scarce / FULL_MILLI
    amount = -(-exact.numerator // exact.denominator)
    if amount > LARGEST:
        detail = "costs more than the portal can compute; ask for less, or for a shorter time"
        raise Rejected("too-large", f"amounts.{name}: this {detail}", fields={f"amounts.{name}": detail})
    return PricePart(name, quantity, hours, base, band_milli, sold, then, scarce, amount)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
