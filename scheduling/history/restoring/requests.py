"""Requests of SREs to set a cell back, for web processes. Another process does the work, and its memory is free when it
ends. Light: imports no heavy library.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.history.studies.requests import run_command
from scheduling.models import Cell


def restore_requested(
    *,
    principal: Principal,
    cell: Cell,
    revision: int | None = None,
    time: dt.datetime | None = None,
    if_revision: int | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Set a cell back to a revision or a time, of which exactly one is given. Return what is lost and what changes, as
    a document. Raises the errors of `cell_restore`, and `Rejected` if it takes too long.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    if (revision is None) == (time is None):
        raise invalid("revision", "exactly one of revision and time is needed; give only a revision or only a time")
    if revision is not None and revision > cell.revision:
        raise invalid("revision", f"{revision} is not a revision of cell {cell.name}; give 0 to {cell.revision}")
    if if_revision is None and not dry_run:
        raise invalid("if_revision", "if_revision is missing; give the revision that the dry run shows")
    arguments = ["restore", cell.name]
    arguments += ["--revision", str(revision)] if time is None else ["--time", time.isoformat()]
    arguments += [] if if_revision is None else ["--if-revision", str(if_revision)]
    return run_command(principal, arguments, dry_run=dry_run)
