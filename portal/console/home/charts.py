"""Draws the figures of the first page of the console: meters of the capacity, evictions by cause (Figure 3), and the
reclamation of the last days (Figure 12). Pure, except that texts are translated.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import partial

from django.utils.translation import gettext as _

from portal import plots
from portal.console.home.figures import RESOURCES, Amounts
from portal.parts.empty import Empty
from portal.parts.meters import Meter, Share, SplitMeter, colour_of, meter, split_meter
from portal.parts.tables import Column, Table
from quota.vocabulary.resources import CPU, DISK, RAM, describe
from scheduling.cells.capacity_reports import Point
from scheduling.history.statistics.reports import EVICTION_CAUSES, Statistics

HOUR = dt.timedelta(hours=1)
# Rates of evictions are drawn in thousandths.
_MILLI = 1000


def meters(amounts: Mapping[int, Amounts], *, places: Sequence[int] = RESOURCES) -> list[Meter]:
    """Return a meter for each of these resources. `amounts`: by the position of the resource."""
    titles = {CPU: _("CPU"), RAM: _("RAM"), DISK: _("Disk")}
    return [
        meter(
            titles[place],
            capacity=amounts[place].capacity,
            used=amounts[place].used,
            reserved=amounts[place].reserved,
            limit=amounts[place].limit,
            format_value=partial(describe, place),
        )
        for place in places
    ]


def causes() -> dict[str, str]:
    """Return the titles of the causes of Figure 3, in the order in which they are drawn."""
    titles = {
        "preemption": _("preemption"),
        "machine-failure": _("machine failure"),
        "machine-shutdown": _("machine shutdown"),
        "out-of-resources": _("out of resources"),
        "dedicated-pool": _("dedicated pool"),
        "other": _("other"),
    }
    return {cause: titles[cause] for cause in EVICTION_CAUSES}


def eviction_meters(periods: Sequence[tuple[str, Statistics]]) -> list[SplitMeter]:
    """Return a bar per period and priority: evictions per task-week, by cause. All bars have the same scale. Periods
    without a running task are left out. `periods`: pairs of a title and the statistics.
    """
    titles = causes()
    bars = []
    for title, found in periods:
        for prod, priority in ((True, _("prod")), (False, _("non-prod"))):
            if found.eviction_rate(prod=prod) is None:
                continue
            rates = {row.cause: row.per_task_week or 0.0 for row in found.evictions() if row.prod is prod}
            shares = [
                Share(titles[cause], round(_MILLI * rates[cause]), colour_of(place))
                for place, cause in enumerate(titles)
            ]
            bars.append((f"{title}, {priority}", shares))
    scale = max((sum(one.value for one in shares) for _title, shares in bars), default=0)
    return [split_meter(title, shares, scale=scale, format_value=_rate) for title, shares in bars]


def eviction_table(found: Statistics) -> Table:
    """Return the numbers of evictions by cause, prod and non-prod beside each other."""
    numbers = {(row.prod, row.cause): row.evictions for row in found.evictions()}
    known = [*causes().items(), *((one, one) for _prod, one in sorted(numbers) if one not in EVICTION_CAUSES)]
    rows = [(title, numbers.get((True, one), 0), numbers.get((False, one), 0)) for one, title in dict(known).items()]
    columns = (Column(_("Cause")), Column(_("Prod"), number=True), Column(_("Non-prod"), number=True))
    return Table(_("Evictions by cause"), columns, rows, Empty(""), flat=True)


def reclamation(points: Sequence[Point], *, since: dt.datetime, until: dt.datetime) -> list[plots.Plot]:
    """Return plots of usage, reservations and limits of CPU and RAM, beside the capacity (Figure 12)."""

    def drawn(title: str, place: int) -> plots.Plot:
        names = {"used": _("used"), "reserved": _("reserved"), "limit": _("limits"), "capacity": _("capacity")}
        return plots.lines(
            title,
            [point.at for point in points],
            [plots.Series(name, [point.value(what, place) for point in points]) for what, name in names.items()],
            since=since,
            until=until,
            step=HOUR,
            format_value=partial(describe, place),
        )

    return [drawn(_("CPU"), CPU), drawn(_("RAM"), RAM)]


def _rate(milli: int) -> str:
    return f"{milli / _MILLI:.3g}"
