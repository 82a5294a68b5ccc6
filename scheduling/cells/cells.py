"""Services that create cells, change their settings, add resources, and start a new history after a restore."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from django.db import transaction

from quota import records
from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import NAMES
from scheduling.cells.platform_factors import machines_normalise
from scheduling.cells.sites import check_fields, place_new_cell
from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.machines.machines import publish_capacity
from scheduling.models import Cell
from scheduling.policy import cell_settings
from scheduling.policy.cpu_factors import parse_cpu_factors

# Readers store the newest revision that they have read. After a restore, revisions must be higher than all of these.
_HISTORY_GAP = 1_000_000
# Labels that the DNS zone of all cells uses itself: `ns.<zone>`, `health.<zone>`.
RESERVED_NAMES = frozenset({"ns", "health"})
# The limit exists because each resource makes all resource vectors of the cell longer.
MAX_EXTRA_RESOURCES = 16
_RESOURCE = re.compile(r"[a-z][a-z0-9_]{0,62}")


def cell_create(
    *, principal: Principal, name: str, cluster: str = "", site: str = "", settings: dict[str, Any] | None = None
) -> Cell:
    """Create an empty cell. A deleted cell may have had the name; the new cell shares nothing with its history.

    `cluster`, `site`: the names of the cell's cluster and of its site, which are created if they do not exist; "" if
    they are not known. Raises `Rejected` if a value is not valid, and `Conflict` if the name is in use, or if the
    cluster is at another site.
    """
    require(principal, Action.CELL_ADMIN)
    loaded = cell_settings.accept(settings or {})
    cell = Cell(name=name, settings=settings or {})
    if Cell.objects.filter(deleted_name=name).exists():
        cell.own_folder = f"{name}.{cell.history_id.hex[:8]}"
    with records.write(principal) as record:
        check_new(cell)
        cell.cluster = place_new_cell(record, cluster=cluster, site=site)
        cell.save()
        with journal.write(cell.id, principal) as entry:
            entry.append(events.CellSet(settings=msgspec.to_builtins(loaded)))
    cell.refresh_from_db()
    return cell


def check_new(cell: Cell) -> None:
    """Check that a cell that is not stored yet can be created. Raises `Rejected` if a value is not valid, and
    `Conflict` if the name is in use.
    """
    name = cell.name
    check_fields(cell)
    if name in RESERVED_NAMES:
        raise invalid("name", f"the name {name!r} is reserved for the DNS zone; choose another name", "reserved-name")
    if Cell.objects.filter(name=name).exists():
        raise Conflict("cell-exists", f"cell {name} already exists; choose another name", fields={"name": "taken"})
    if not cell.own_folder and Cell.objects.filter(deleted_name=name).exists():
        detail = f"a deleted cell had the name {name}, and its files still use this name; choose another name"
        raise Conflict("cell-exists", detail, fields={"name": "used by a deleted cell"})


def cell_set(*, principal: Principal, cell: Cell, settings: dict[str, Any]) -> Cell:
    """Replace a cell's settings. Equal settings change nothing, except that machines without the CPU factor of their
    platform get it. Raises `Rejected` if a setting is wrong. Locks the
    cell's row.
    """
    return _set(principal, cell, lambda _: settings)


def cell_change(*, principal: Principal, cell: Cell, changes: Mapping[str, Any]) -> Cell:
    """Change some of a cell's settings, and leave the others as they are. `changes`: {setting: value}; None for the
    default value. Raises `Rejected` if a setting is wrong. Locks the cell's row.
    """

    def changed(stored: dict[str, Any]) -> dict[str, Any]:
        merged = {**stored, **changes}
        # An unknown name stays, so that it is rejected even with None.
        return {name: value for name, value in merged.items() if value is not None or name not in _SETTINGS}

    return _set(principal, cell, changed)


_SETTINGS = frozenset(cell_settings.CellSettings.__struct_fields__)


def _set(principal: Principal, cell: Cell, new: Callable[[dict[str, Any]], dict[str, Any]]) -> Cell:
    """Store new settings of a cell. `new`: a function that computes them from the stored ones."""
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    with transaction.atomic():
        with journal.write(cell.id, principal) as entry:
            stored = Cell.objects.values_list("settings", flat=True).get(pk=cell.id)
            settings = new(stored)
            loaded = cell_settings.accept(settings)
            if settings != stored:
                Cell.objects.filter(pk=cell.id).update(settings=settings)
                entry.append(events.CellSet(settings=msgspec.to_builtins(loaded)))
        # Machines of a study cell have the normalised capacity of their checkpoint.
        if cell.study_of is None and machines_normalise(principal, cell, parse_cpu_factors(loaded.cpu_factors)):
            with journal.write(cell.id, principal) as entry:  # link shards read all desired states again
                entry.append(events.CellSet(settings=msgspec.to_builtins(loaded)))
    cell.refresh_from_db()
    return cell


def cell_resource_add(*, principal: Principal, cell: Cell, name: str) -> Cell:
    """Add a named resource to a live cell. Machines offer a whole number of it, and tasks ask for a whole number of it.

    A resource can never be removed. Quota counts only the built-in resources such as CPU, not named resources. A
    machine has none of the new resource until it reports some. Raises `Rejected` if the name is not valid, and
    `Conflict` if the name is in use. Locks the cell's row.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    if not _RESOURCE.fullmatch(name):
        detail = (
            f"{name[:80]!r} is not the name of a resource; use at most 63 lower-case letters, digits and '_', and"
            " begin with a letter"
        )
        raise invalid("name", detail)
    with journal.write(cell.id, principal) as entry:
        row = Cell.objects.only("extra_resources", "settings").get(pk=cell.id)
        if name in (*NAMES, *row.extra_resources):
            detail = f"cell {cell.name} already has a resource {name}; choose another name"
            raise Conflict("resource-exists", detail, fields={"name": "taken"})
        if len(row.extra_resources) >= MAX_EXTRA_RESOURCES:
            detail = (
                f"cell {cell.name} already has {MAX_EXTRA_RESOURCES} resources beyond the built-in ones, which is the"
                " maximum; use one of these"
            )
            raise Rejected("too-many-resources", detail, fields={"name": detail})
        extra = [*row.extra_resources, name]
        Cell.objects.filter(pk=cell.id).update(extra_resources=extra)
        settings = msgspec.to_builtins(cell_settings.load(row.settings))
        entry.append(events.CellSet(settings=settings, extra_resources=tuple(extra)))
        publish_capacity(entry)
    cell.refresh_from_db()
    return cell


def cell_new_history(*, principal: Principal, cell: Cell) -> Cell:
    """Start a new history after the database was restored from a backup. Borglets then quarantine tasks that are
    missing in the database.

    The next revision is higher than all lost revisions. So the revisions that a reader sees never decrease.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    with transaction.atomic():
        row = Cell.objects.select_for_update().get(pk=cell.id)
        row.history_id = uuid.uuid4()
        row.history_ordinal += 1
        row.revision += _HISTORY_GAP
        row.save(update_fields=["history_id", "history_ordinal", "revision"])
        journal.ensure_partitions()
        with journal.write(cell.id, principal) as entry:
            entry.append(events.CellSet(settings=row.settings))
    cell.refresh_from_db()
    return cell
