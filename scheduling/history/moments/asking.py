"""The state of a cell at any moment of the past, with only the rows that the caller may see.

    caller ─► visible tenants ─► process.py: a process of its own ─► answering.py ─► kept_states.py ─► past_cell.py

With `BORG_MOMENT_PROCESS = False`, this process rebuilds the states itself. Tests need that, because another process
does not see their transactions.
"""

from __future__ import annotations

import datetime as dt

from django.conf import settings

from quota.vocabulary.permissions import Action, Principal, require
from scheduling.history.infrastore.visible_rows import visibility
from scheduling.history.moments.messages import ListFilter, MomentRequest, PastMoment
from scheduling.history.moments.process import MomentProcess
from scheduling.models import Cell

_process = MomentProcess()


def past_moment(
    *,
    principal: Principal,
    cell: Cell,
    revision: int | None = None,
    time: dt.datetime | None = None,
    machines: ListFilter | None = None,
    tasks: ListFilter | None = None,
) -> PastMoment:
    """Return a cell at a revision, or after the last change before a time, or at present. Lists contain only jobs that
    the principal may see; other jobs are only counted. `machines`, `tasks`: which rows of both lists to return.

    Raises `Rejected` if the cell did not exist at this moment, if its state cannot be rebuilt, or if this takes too
    long.
    """
    require(principal, Action.CELL_VIEW, cell=cell.name)
    request = MomentRequest(
        cell_id=cell.id,
        revision=revision,
        time=time,
        tenants=visibility(principal, cell).users,
        machines=machines or ListFilter(),
        tasks=tasks or ListFilter(),
    )
    if settings.BORG_MOMENT_PROCESS:
        return _process.moment(request)
    from scheduling.history.moments.answering import moment_of
    from scheduling.history.moments.kept_states import StateKeeper

    return moment_of(StateKeeper(), request)
