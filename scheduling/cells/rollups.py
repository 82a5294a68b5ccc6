"""Sums per site, cluster and cell: machines, tasks, capacity, allocation and usage (§2.1, §2.2).

    rows of machines ─────────────► cell_counts ─┐
    counters of jobs ─────────────► cell_counts ─┼─► figures per cell ─► sums per cluster ─► sums per site
    Redis: figures of the masters ─► figures_of ─┘

A cell has no measured amounts if its master published none in the last minute, or if Redis cannot be reached. Sums then
leave these amounts out, and name how many cells were measured. Counts come from the database, so they are always
complete.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import redis
import structlog

from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import cells_visible
from scheduling.access.sites import clusters_visible, sites_visible
from scheduling.cells.cell_counts import cell_counts, no_counts
from scheduling.models import Cell, Cluster, Site
from scheduling.usage.utilisation import UtilisationFigures, figures_of

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of some cells together. `cells`: how many cells. `measured`: how many of them have measured amounts.
    `counts`: the numbers of machines and tasks, with the keys of `cell_counts`.

    `capacity` (of machines that are up), `allocated` (the limits of running tasks) and `usage`: sums over the measured
    cells, by name of the resource, in the unit of the resource.
    """

    cells: int = 0
    measured: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocated: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellRollup:
    """A cell with its figures. `measured_at`: when its master published the amounts, or None without amounts."""

    cell: Cell
    figures: Figures
    measured_at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class ClusterRollup:
    """A cluster with its cells. `cluster`: None for the cells whose cluster is not recorded."""

    cluster: Cluster | None
    cells: list[CellRollup]
    figures: Figures


@dataclass(frozen=True, slots=True)
class SiteRollup:
    """A site with its clusters. `site`: None for the clusters and cells whose site is not recorded."""

    site: Site | None
    clusters: list[ClusterRollup]
    figures: Figures


def site_rollups(principal: Principal) -> list[SiteRollup]:
    """Return all sites that the principal may see, with their clusters and cells, sorted by name. What belongs to no
    site comes last, and so do cells without a cluster. Study cells and deleted cells are left out.

    Makes five queries and one request to Redis, however many rows there are.
    """
    cells = list(cells_visible(principal).filter(study_of__isnull=True).order_by("name"))
    found: defaultdict[int | None, list[CellRollup]] = defaultdict(list)
    for one in _cell_rollups(cells):
        found[one.cell.cluster_id].append(one)
    clusters: defaultdict[int | None, list[ClusterRollup]] = defaultdict(list)
    for cluster in clusters_visible(principal):
        clusters[cluster.site_id].append(_cluster(cluster, found[cluster.id]))
    if found[None]:
        clusters[None].append(_cluster(None, found[None]))
    sites = [_site(site, clusters[site.id]) for site in sites_visible(principal)]
    return [*sites, _site(None, clusters[None])] if clusters[None] else sites


def _cell_rollups(cells: list[Cell]) -> list[CellRollup]:
    ids = [cell.id for cell in cells]
    counts, measured = cell_counts(ids), _measured(ids)
    return [
        CellRollup(
            cell,
            _figures(counts[cell.id], measured.get(cell.id)),
            dt.datetime.fromtimestamp(measured[cell.id].at, dt.UTC) if cell.id in measured else None,
        )
        for cell in cells
    ]


def _measured(cell_ids: list[int]) -> dict[int, UtilisationFigures]:
    try:
        return figures_of(cell_ids)
    except redis.RedisError as error:
        log.warning("cells are shown without measured amounts, because Redis is not reachable", error=str(error))
        return {}


def _figures(counts: Mapping[str, int], measured: UtilisationFigures | None) -> Figures:
    if measured is None:
        return Figures(cells=1, counts=counts)
    return Figures(
        cells=1, measured=1, counts=counts, capacity=measured.capacity, allocated=measured.limit, usage=measured.usage
    )


def _cluster(cluster: Cluster | None, cells: list[CellRollup]) -> ClusterRollup:
    return ClusterRollup(cluster, cells, _sum(one.figures for one in cells))


def _site(site: Site | None, clusters: list[ClusterRollup]) -> SiteRollup:
    return SiteRollup(site, clusters, _sum(one.figures for one in clusters))


def _sum(parts: Iterable[Figures]) -> Figures:
    cells = measured = 0
    sums: dict[str, Counter[str]] = {name: Counter() for name in ("capacity", "allocated", "usage")}
    sums["counts"] = Counter(no_counts())
    for part in parts:
        cells, measured = cells + part.cells, measured + part.measured
        for name, values in sums.items():
            values.update(getattr(part, name))
    return Figures(cells=cells, measured=measured, **sums)
