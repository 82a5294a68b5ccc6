"""Preemption between bands (§2.5): production tasks never preempt one another. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from quota.vocabulary.bands import DEFAULT_BANDS, Band, band_of


def preemption_ceiling(priority: int, bands: Sequence[Band] = DEFAULT_BANDS) -> int:
    """Return the priority below which a task of `priority` may preempt other tasks (§2.5). Return 0 if the priority is
    in no band.

    In a band with `preempts_within`, a task may preempt every task of a lower priority. In the other bands
    (production and monitoring), it may preempt only tasks of lower bands.
    """
    try:
        band = band_of(priority, bands)
    except LookupError:
        return 0
    return priority if band.preempts_within else band.low
