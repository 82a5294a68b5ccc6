"""Services that create, change and delete sites and clusters, and that move cells to other clusters (§2.2).

    site (a collection of buildings) ─► cluster (one network fabric in one building) ─► cell (a set of machines)

Each change is an audit record of the platform. No change concerns machines, tasks or the journal of a cell, because the
scheduler and the Borglets do not read where a cell is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db.models import Model

from quota import records
from quota.records import RecordEntry
from quota.vocabulary.errors import Conflict, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.journal.sql import query
from scheduling.models import Cell, Cluster, Site

M = TypeVar("M", bound=Model)
_NAMED = 10  # names in a message
_LOCK = "scheduling.sites"
UNKNOWN_CLUSTER = "For cells of site {site} whose cluster is not recorded."


def site_create(*, principal: Principal, name: str, description: str = "", location: str = "") -> Site:
    """Create a site without clusters. Raises `Rejected` if a value is not valid, and `Conflict` if the name is in
    use.
    """
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as record:
        _lock()
        return _site_create(record, Site(name=name, description=description, location=location))


def site_change(*, principal: Principal, site: Site, changes: Mapping[str, str]) -> Site:
    """Change the description or the location of a site. Raises `Rejected` if a value is not valid."""
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as record:
        _lock(site)
        _change(record, site, changes, "site.changed", ("description", "location"))
    return site


def site_delete(*, principal: Principal, site: Site) -> None:
    """Delete a site. Raises `Conflict` with the field `clusters` if a cluster is there."""
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as record:
        _lock(site)
        if there := list(Cluster.objects.filter(site=site).values_list("name", flat=True)):
            detail = (
                f"site {site} cannot be deleted, because it has {_listed(there, 'cluster')}; move them with"
                " `borgctl cluster set CLUSTER --site SITE`, or delete them"
            )
            raise Conflict("site-in-use", detail, fields={"clusters": detail})
        site.delete()
        record.append("site.deleted", site=site.name)


def cluster_create(*, principal: Principal, name: str, site: str = "", description: str = "") -> Cluster:
    """Create a cluster without cells. `site`: the name of its site, or "" if it is not known yet. Raises `Rejected` if
    a value is not valid or there is no such site, and `Conflict` if the name is in use.
    """
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as record:
        _lock()
        return _cluster_create(record, Cluster(name=name, description=description, site=_known_site(site)))


def cluster_change(*, principal: Principal, cluster: Cluster, changes: Mapping[str, str]) -> Cluster:
    """Change the description of a cluster, or move it to another site: its cells move with it. `changes`: new values of
    `description` and `site`; the site "" means that it is not known. Raises `Rejected` if a value is not valid, or if
    the site does not exist.
    """
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as record:
        _lock(cluster)
        if "site" in changes and changes["site"] != (before := cluster.site_name):
            cluster.site = _known_site(changes["site"])
            cluster.save(update_fields=["site"])
            record.append("cluster.moved", cluster=cluster.name, site=cluster.site_name, before=before)
        _change(record, cluster, changes, "cluster.changed", ("description",))
    return cluster


def cluster_delete(*, principal: Principal, cluster: Cluster) -> None:
    """Delete a cluster. Raises `Conflict` with the field `cells` if it has cells. Deleted cells do not count: they no
    longer have a cluster afterwards.
    """
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as record:
        _lock(cluster)
        cells = Cell.objects.filter(cluster=cluster)
        if there := list(cells.filter(deleted_at=None).values_list("name", flat=True)):
            detail = (
                f"cluster {cluster} cannot be deleted, because it has {_listed(there, 'cell')}; move them with"
                " `borgctl cell move CELL --cluster CLUSTER`, or delete them"
            )
            raise Conflict("cluster-in-use", detail, fields={"cells": detail})
        cells.update(cluster=None)
        cluster.delete()
        record.append("cluster.deleted", cluster=cluster.name)


def cell_move(*, principal: Principal, cell: Cell, cluster: str) -> Cell:
    """Record that a cell belongs to another cluster. Nothing happens to its machines and tasks.

    `cluster`: the name of the cluster, or "" for none. Raises `Rejected` if there is no such cluster, and `Conflict`
    for a study cell or a deleted cell. Locks the cell's row.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    with records.write(principal) as record:
        _lock()
        row = Cell.objects.select_for_update().get(pk=cell.pk)
        if row.study_of is not None or row.deleted_at is not None:
            state = "a study cell" if row.study_of is not None else "a deleted cell"
            detail = f"cell {row} is {state}, which nobody can change; give the name of another cell"
            raise Conflict("cell-not-operated", detail, fields={"cell": detail})
        before, after = row.cluster_name, _known_cluster(cluster)
        if cluster != before:
            row.cluster = after
            row.save(update_fields=["cluster"])
            record.append("cell.moved", cell=row.name, cluster=cluster, before=before)
    cell.refresh_from_db()
    return cell


def place_new_cell(record: RecordEntry, *, cluster: str, site: str) -> Cluster | None:
    """Return the cluster of a cell that is about to be created. Create the cluster and the site if they do not exist.

    `cluster`, `site`: names, or "" if they are not known. If only the site is known, the cell gets a cluster with the
    name of the site. Raises `Rejected` if a name is not valid, and `Conflict` if the cluster is at another site.
    """
    if not cluster and not site:
        return None
    _lock()
    name = cluster or site
    found = Cluster.objects.select_related("site").filter(name=name).first()
    if found is None:
        there = Site.objects.filter(name=site).first() if site else None
        if site and there is None:
            there = _site_create(record, Site(name=site), name_as="site")
        description = "" if cluster else UNKNOWN_CLUSTER.format(site=site)
        return _cluster_create(record, Cluster(name=name, site=there, description=description), name_as="cluster")
    if site and found.site_name != site:
        where = f"at site {found.site}" if found.site else "at no site"
        detail = (
            f"cluster {name} is {where}, not at site {site}; give another cluster, or move this one with"
            f" `borgctl cluster set {name} --site {site}`"
        )
        raise Conflict("other-site", detail, fields={"site": detail})
    return found


def check_fields(row: Model, *, name_as: str = "name") -> None:
    """Check the values of a row that is about to be stored. Raises `Rejected`, whose fields are the names of the
    columns. `name_as`: the field of the request that gave the column `name`.
    """
    try:
        row.clean_fields()
    except ValidationError as error:
        fields = {
            name_as if column == "name" else column: " ".join(messages)
            for column, messages in error.message_dict.items()
        }
        detail = "; ".join(f"{field}: {what}" for field, what in fields.items())
        raise Rejected("invalid", detail, fields=fields) from error


def _site_create(record: RecordEntry, site: Site, *, name_as: str = "name") -> Site:
    check_fields(site, name_as=name_as)
    if Site.objects.filter(name=site.name).exists():
        raise Conflict("site-exists", f"site {site} already exists; choose another name", fields={name_as: "taken"})
    site.save()
    record.append("site.created", site=site.name, description=site.description, location=site.location)
    return site


def _cluster_create(record: RecordEntry, cluster: Cluster, *, name_as: str = "name") -> Cluster:
    check_fields(cluster, name_as=name_as)
    if Cluster.objects.filter(name=cluster.name).exists():
        detail = f"cluster {cluster} already exists; choose another name"
        raise Conflict("cluster-exists", detail, fields={name_as: "taken"})
    cluster.save()
    record.append("cluster.created", cluster=cluster.name, site=cluster.site_name, description=cluster.description)
    return cluster


def _change(
    record: RecordEntry, row: Site | Cluster, changes: Mapping[str, str], kind: str, columns: Sequence[str]
) -> None:
    """Store the new values of `columns` in a row. Values that are equal to the present ones change nothing."""
    changed = [column for column in columns if changes.get(column, getattr(row, column)) != getattr(row, column)]
    if not changed:
        return
    for column in changed:
        setattr(row, column, changes[column])
    check_fields(row)
    row.save(update_fields=changed)
    record.append(kind, **{row._meta.model_name or "": row.name, **{column: changes[column] for column in changed}})


def _known_site(name: str) -> Site | None:
    return _known(Site, "site", name, f"create it with `borgctl site create {name}`")


def _known_cluster(name: str) -> Cluster | None:
    return _known(Cluster, "cluster", name, f"create it with `borgctl cluster create {name} --site SITE`")


def _known(model: type[M], field: str, name: str, cure: str) -> M | None:
    """Return the row of this name, or None if the name is "". Raises `Rejected` if there is no such row."""
    if not name:
        return None
    found = model._default_manager.filter(name=name).first()
    if found is None:
        known = model._default_manager.order_by("name").values_list("name", flat=True)[:_NAMED]
        others = f", or give one of {', '.join(known)}" if known else ""
        raise invalid(field, f"there is no {field} {name!r}; {cure}{others}", f"no-{field}")
    return found


def _listed(names: Sequence[str], noun: str) -> str:
    """Return how many there are, and their names: `2 clusters (c1, c2)`."""
    more = ", …" if len(names) > _NAMED else ""
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({', '.join(names[:_NAMED])}{more})"


def _lock(row: Site | Cluster | None = None) -> None:
    """Let other transactions that change sites, clusters or the place of a cell wait until this one ends. Read `row`
    again. Raises `NotFound` if another transaction has deleted it.
    """
    query("SELECT pg_advisory_xact_lock(hashtext(%s))", [_LOCK])
    if row is not None:
        try:
            row.refresh_from_db()
        except ObjectDoesNotExist:
            raise NotFound(row._meta.model_name or "", row.name) from None
