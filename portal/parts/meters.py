"""Meters: bars that show how much of a capacity is used, reserved and promised.

A meter draws three amounts over one another: the use (solid), the reservation (pale) and the sum of the limits (a
tick). Limits alone would show a cell as full although it has free capacity, because limits may add up to more than the
capacity (§5.5). `split_meter` draws one amount that several owners share, such as the tasks of a machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# From this share of the capacity on, the bar of the use has the colour of a warning.
NEARLY_FULL = 0.9
# The colours of the shares of a split meter are those of the lines of plots.
COLOURS = 7


@dataclass(frozen=True, slots=True)
class Meter:
    """A bar with the use, the reservation and the limit of one resource.

    `capacity_width`, `used_width`, `reserved_width`, `limit_x`: percentages of the width of the image, as text; "" if
    the amount is not known. `text`: the three amounts as shares of the capacity. `name`: the text for screen readers
    and tooltips, with the amounts. `tone`: the colour of the use: `good`, `wait` or `bad`.
    """

    title: str
    capacity: str
    text: str
    name: str
    tone: str
    capacity_width: str
    used_width: str
    reserved_width: str
    limit_x: str


@dataclass(frozen=True, slots=True)
class Share:
    """An owner's part of a split meter. `colour`: the number of a colour of plots, or 0 for grey."""

    title: str
    value: int
    colour: int


@dataclass(frozen=True, slots=True)
class DrawnShare:
    """A part in the image of a split meter. `x`, `width`: percentages, as text. `name`: the text of its tooltip."""

    colour: int
    x: str
    width: str
    name: str


@dataclass(frozen=True, slots=True)
class SplitMeter:
    """A bar of one amount that is split by owner, for `parts/split_meter.html`.

    `total`: the sum, as text. `name`: the text for screen readers. `capacity_width`: the part of the image that the
    capacity takes, as a percentage; "" without a capacity.
    """

    title: str
    total: str
    name: str
    capacity_width: str
    shares: tuple[DrawnShare, ...]


def meter(
    title: str,
    *,
    capacity: int,
    used: int | None,
    reserved: int | None,
    limit: int | None,
    format_value: Callable[[int], str],
) -> Meter:
    """Return the meter of one resource. The amounts are in the unit of the resource; None if one is not known.

    The width of the image is the capacity, or the largest of the amounts if that is larger.
    """
    amounts = {"used": used, "reserved": reserved, "limits": limit}
    known = {name: value for name, value in amounts.items() if value is not None}
    scale = max([capacity, *known.values(), 1])
    shares = [f"{_share(value, capacity)} {name}" for name, value in known.items()]
    spoken = ", ".join(f"{name} {format_value(value)}" for name, value in known.items()) or "no amount is known"
    filled = (used or 0) / capacity if capacity else float(bool(used))
    return Meter(
        title,
        format_value(capacity),
        " · ".join(shares),
        f"{title}: {spoken}, capacity {format_value(capacity)}",
        "bad" if filled > 1 else "wait" if filled >= NEARLY_FULL else "good",
        _percent(capacity, scale),
        *("" if value is None else _percent(value, scale) for value in amounts.values()),
    )


def split_meter(
    title: str, shares: Sequence[Share], *, scale: int, format_value: Callable[[int], str], capacity: int | None = None
) -> SplitMeter:
    """Return a bar whose parts are `shares`, in their order. Shares of 0 are left out.

    `scale`: the amount that fills the image; several meters below one another have the same scale. A larger sum fills
    the image too. `capacity`: drawn as the ground of the bar; None for a bar without one.
    """
    total = sum(one.value for one in shares)
    scale = max(scale, total, 1)
    drawn, before = [], 0
    for one in shares:
        if one.value > 0:
            name = f"{one.title}: {format_value(one.value)}"
            drawn.append(DrawnShare(one.colour, _percent(before, scale), _percent(one.value, scale), name))
            before += one.value
    of = f" of {format_value(capacity)}" if capacity is not None else ""
    spoken = "; ".join(one.name for one in drawn[:COLOURS])
    return SplitMeter(
        title,
        format_value(total) + of,
        f"{title}: {format_value(total)}{of}" + (f" ({spoken})" if spoken else ""),
        "" if capacity is None else _percent(capacity, scale),
        tuple(drawn),
    )


def colour_of(place: int) -> int:
    """Return the colour of the share at this place, from 0. The places from `COLOURS` on are grey."""
    return place + 1 if place < COLOURS else 0


def _share(value: int, capacity: int) -> str:
    return f"{value / capacity:.0%}" if capacity else "–"


def _percent(value: int, scale: int) -> str:
    return f"{100 * value / scale:.2f}%"
