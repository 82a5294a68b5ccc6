"""Cells: made, set, and given a new history after a restore."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from django.core.exceptions import ValidationError
from django.db import transaction

from quota.errors import Conflict, Refused
from quota.permissions import Action, Principal, require
from scheduling import config, journal
from scheduling.core import events
from scheduling.models import Cell

# Readers keep the newest revision they saw; after a restore it must still rise (DESIGN §10).
_HISTORY_GAP = 1_000_000
# Labels that the zone of all cells uses for itself: `ns.<zone>`, `health.<zone>`.
RESERVED_NAMES = frozenset({"ns", "health"})


def cell_create(
    *,
    principal: Principal,
    name: str,
    cluster: str = "",
    site: str = "",
    settings: dict[str, Any] | None = None,
) -> Cell:
    """A new, empty cell. Raises `Refused` naming the field, `Conflict` when the name is taken."""
    require(principal, Action.CELL_ADMIN)
    loaded = config.load(settings or {})
    cell = Cell(name=name, cluster=cluster, site=site, settings=settings or {})
    try:
        cell.clean_fields()
    except ValidationError as error:
        fields = {field: " ".join(messages) for field, messages in error.message_dict.items()}
        detail = "; ".join(f"{field}: {what}" for field, what in fields.items())
        raise Refused("invalid", detail, fields=fields) from error
    if name in RESERVED_NAMES:
        told = f"{name!r} is a name that the zone uses itself; choose another"
        raise Refused("reserved-name", f"name: {told}", fields={"name": told})
    with transaction.atomic():
        if Cell.objects.filter(name=name).exists():
            raise Conflict("cell-exists", f"cell {name} exists already", fields={"name": "taken"})
        cell.save()
        with journal.write(cell.id, principal) as entry:
            entry.append(events.CellSet(settings=msgspec.to_builtins(loaded)))
    cell.refresh_from_db()
    return cell


def cell_set(*, principal: Principal, cell: Cell, settings: dict[str, Any]) -> Cell:
    """Replace a cell's settings. Equal settings change nothing. Locks the cell's row."""
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    loaded = config.load(settings)
    with journal.write(cell.id, principal) as entry:
        if Cell.objects.values_list("settings", flat=True).get(pk=cell.id) != settings:
            Cell.objects.filter(pk=cell.id).update(settings=settings)
            entry.append(events.CellSet(settings=msgspec.to_builtins(loaded)))
    cell.refresh_from_db()
    return cell


def cell_new_history(*, principal: Principal, cell: Cell) -> Cell:
    """The database was restored: Borglets quarantine what it doesn't know, instead of killing it.

    Revisions jump beyond anything the lost part can have reached, so that no reader sees them go back.
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
