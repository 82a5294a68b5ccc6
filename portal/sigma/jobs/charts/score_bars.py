"""The scores of the machines that the scheduler compared for a placement (§3.2), as bars below one another."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext as _

from portal.parts.meters import Share, SplitMeter, colour_of, split_meter
from quota.vocabulary.resources import format_number
from scheduling.tasks.placement_records import PlacementReceipt

# Bars are drawn in thousandths of a point.
MILLI = 1000


def score_bars(placement: PlacementReceipt | None) -> Sequence[SplitMeter]:
    """Return one bar for the machine of a placement, which has a part for each part of its score, and one bar for each
    of the next best machines. Return [] without a score.

    The parts of a score are points that a machine loses, so the best machine has the shortest bar. A part that adds
    points is only in the table of the scores.
    """
    if placement is None or not placement.score:
        return []
    parts = [
        Share(part, round(-MILLI * value), colour_of(place))
        for place, (part, value) in enumerate(placement.score.items())
    ]
    others = [(host, [Share(_("total score"), round(-MILLI * total), 0)]) for host, total in placement.runners_up]
    bars = [(placement.machine, parts), *others]
    scale = max(sum(max(0, share.value) for share in shares) for _host, shares in bars)
    return [split_meter(host, shares, scale=scale, format_value=_format_points) for host, shares in bars]


def _format_points(lost_milli: int) -> str:
    """Return the points of a score. `lost_milli`: the lost points, in thousandths."""
    return format_number(-lost_milli / MILLI, 3)
