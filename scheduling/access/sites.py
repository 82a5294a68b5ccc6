"""Functions that read sites and clusters from the database. They return only rows that the caller may see."""

from __future__ import annotations

from django.db.models import QuerySet

from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.models import Cluster, Site


def sites_visible(principal: Principal) -> QuerySet[Site]:
    """Return the sites that the principal may see, in the order of their names: all, or that of the cell to which its
    token is limited.
    """
    rows = Site.objects.order_by("name")
    if principal.cell is not None:
        rows = rows.filter(clusters__cells__name=principal.cell)
    return rows if may(principal, Action.CELL_VIEW) else rows.none()


def clusters_visible(principal: Principal) -> QuerySet[Cluster]:
    """Return the clusters that the principal may see with their sites, in the order of their names: all, or that of the
    cell to which its token is limited.
    """
    rows = Cluster.objects.select_related("site").order_by("name")
    if principal.cell is not None:
        rows = rows.filter(cells__name=principal.cell)
    return rows if may(principal, Action.CELL_VIEW) else rows.none()


def site_named(principal: Principal, name: str) -> Site:
    """Return the site of this name. Raises `NotFound` if the site does not exist or the principal may not see it; the
    error lists sites that the principal may see.
    """
    found = sites_visible(principal).filter(name=name).first()
    if found is None:
        raise NotFound("site", name, known=list(sites_visible(principal).values_list("name", flat=True)[:10]))
    return found


def cluster_named(principal: Principal, name: str) -> Cluster:
    """Return the cluster of this name, with its site. Raises `NotFound` if the cluster does not exist or the principal
    may not see it; the error lists clusters that the principal may see.
    """
    found = clusters_visible(principal).filter(name=name).first()
    if found is None:
        raise NotFound("cluster", name, known=list(clusters_visible(principal).values_list("name", flat=True)[:10]))
    return found
