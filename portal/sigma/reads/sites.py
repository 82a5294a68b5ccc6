"""The table of sites, clusters and cells with their machines, tasks and resources, for the portal and the console."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from portal.parts.empty import Empty
from portal.parts.paging import Paging
from portal.parts.tables import Column, Table
from scheduling.cells.rollups import Figures, SiteRollup
from scheduling.models import Cell, Cluster, Site

# The indentation of a row.
_SITE, _CLUSTER, _CELL = range(3)
Place = Site | Cluster | Cell


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """A row of the table, for `sigma/rows/place.html`. `level`: how far the name is indented. `kind`: the word before
    the name, or "". `link`: the address of its page, or "". `note`: a text after the name. `is_sum`: whether the
    figures are the sums of the rows below.
    """

    level: int
    kind: str
    name: str
    link: str
    note: str
    is_sum: bool
    figures: Figures

    @property
    def unmeasured(self) -> int:
        """Return how many cells of this row have no measured amounts."""
        return self.figures.cells - self.figures.measured


def site_table(
    sites: Sequence[SiteRollup], link_of: Callable[[Place], str], *, empty: Empty, paging: Paging | None = None
) -> Table:
    """Return the table of these sites. `link_of`: a function that returns the address of the page of a site, a cluster
    or a cell, or "". If no site and no cluster is recorded, the table lists only the cells.
    """
    columns = (
        Column(_("Cell")),
        Column(_("Machines up"), number=True),
        Column(_("Draining"), number=True),
        Column(_("Down"), number=True),
        Column(_("CPU allocated")),
        Column(_("RAM allocated")),
        Column(_("Tasks running"), number=True),
        Column(_("Tasks pending"), number=True),
    )
    rows = list(_rows(sites, link_of))
    return Table(_("Sites and cells"), columns, rows, empty, paging=paging, row_template="sigma/rows/place.html")


def _rows(sites: Sequence[SiteRollup], link_of: Callable[[Place], str]) -> Iterator[PlaceRow]:
    plain = all(one.site is None and all(part.cluster is None for part in one.clusters) for one in sites)
    for site in sites:
        if not plain:
            yield _row(_SITE, site.site, site.figures, link_of)
        for cluster in site.clusters:
            if cluster.cluster is not None:
                yield _row(_CLUSTER, cluster.cluster, cluster.figures, link_of)
            for cell in cluster.cells:
                level = _SITE if plain else _CLUSTER if cluster.cluster is None else _CELL
                yield PlaceRow(level, "", cell.cell.name, link_of(cell.cell), "", False, cell.figures)


def _row(level: int, place: Site | Cluster | None, figures: Figures, link_of: Callable[[Place], str]) -> PlaceRow:
    kind = _("Site") if level == _SITE else _("Cluster")
    if place is None:
        return PlaceRow(level, "", _("No site recorded"), "", "", True, figures)
    notes = [place.description, place.location if isinstance(place, Site) else ""]
    return PlaceRow(level, kind, place.name, link_of(place), " · ".join(filter(None, notes)), True, figures)
