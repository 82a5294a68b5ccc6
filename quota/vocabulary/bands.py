"""Priority bands (§2.5, with the ranges of Google's 2019 trace). Pure: this module uses no database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Band(NamedTuple):
    """A range of priorities. `low`, `high`: the lowest and the highest priority of the band.

    Bands do not overlap. `prod`: true if the scheduler places tasks of the band by their limits, never in reclaimed
    resources (§5.5). `preempts_within`: whether a task may preempt a task of the same band that has a lower priority.
    This is false for the bands production (§2.5) and monitoring.
    """

    name: str
    low: int
    high: int
    prod: bool
    preempts_within: bool


MONITORING = Band("monitoring", 360, 450, prod=True, preempts_within=False)
PRODUCTION = Band("production", 120, 359, prod=True, preempts_within=False)
BATCH = Band("batch", 100, 119, prod=False, preempts_within=True)
BEST_EFFORT = Band("best-effort", 0, 99, prod=False, preempts_within=True)
DEFAULT_BANDS: tuple[Band, ...] = (MONITORING, PRODUCTION, BATCH, BEST_EFFORT)


class Factors(NamedTuple):
    """The two factors of a band, in thousandths.

    `price_milli`: the factor by which the base price is multiplied. `oversell_milli`: how much of a cell's capacity may
    be sold in the band.
    """

    price_milli: int
    oversell_milli: int


# Jobs that may be preempted and may use reclaimed resources cost less, and their bands sell more than the capacity.
DEFAULT_FACTORS: Mapping[str, Factors] = {
    MONITORING.name: Factors(1500, 1000),
    PRODUCTION.name: Factors(1000, 1000),
    BATCH.name: Factors(400, 1500),
    BEST_EFFORT.name: Factors(150, 2000),
}
PLAIN = Factors(1000, 1000)
MAX_FACTOR = 1_000_000

# The only priority with infinite free quota (§2.5).
FREE_PRIORITY = 0
MAX_PRIORITY = MONITORING.high


def band_of(priority: int, bands: Sequence[Band] = DEFAULT_BANDS) -> Band:
    """Return the band that contains `priority`. Raises `LookupError` if no band does."""
    for band in bands:
        if band.low <= priority <= band.high:
            return band
    ranges = ", ".join(f"{band.name} {band.low}-{band.high}" for band in bands)
    raise LookupError(f"priority {priority} is in no band; give a priority of one of the bands {ranges}")
