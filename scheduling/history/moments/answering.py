"""Answers requests for past moments, in the process that keeps their states."""

from __future__ import annotations

import datetime as dt
import time

from quota.admission.admission import bands
from quota.vocabulary.errors import NotFound, Rejected
from scheduling.core.vocabulary.policy import Policy
from scheduling.history.checkpoints.states import revision_at
from scheduling.history.moments.keeper import StateKeeper
from scheduling.history.moments.messages import MomentAnswer, MomentRequest, PastMoment
from scheduling.history.moments.picture import picture_of
from scheduling.history.moments.reasons import reasons_of
from scheduling.journal.sql import query
from scheduling.models import Cell
from scheduling.policy import cell_settings

_BEFORE = (
    "SELECT time FROM scheduling_event WHERE cell_id = %s AND revision <= %s ORDER BY revision DESC, seq DESC LIMIT 1"
)
_AFTER = "SELECT time FROM scheduling_event WHERE cell_id = %s AND revision > %s ORDER BY revision, seq LIMIT 1"


def answer(keeper: StateKeeper, request: MomentRequest) -> MomentAnswer:
    """Return the answer to a request. A rejection becomes an answer too."""
    try:
        return MomentAnswer(moment=moment_of(keeper, request))
    except Rejected as problem:
        return MomentAnswer(
            code=problem.code, detail=problem.detail, fields=dict(problem.fields), status=problem.status
        )


def moment_of(keeper: StateKeeper, request: MomentRequest) -> PastMoment:
    """Return a cell at the revision or time of a request. Raises `Rejected` if the cell was never there, or if it
    cannot be rebuilt.
    """
    cell = Cell.objects.filter(pk=request.cell_id).first()
    if cell is None:
        raise NotFound("cell", str(request.cell_id))
    revision = cell.revision if request.revision is None else request.revision
    if request.time is not None:
        revision = revision_at(cell, request.time, newest=cell.revision)
    begin = time.perf_counter()
    state = keeper.state(cell, revision)
    replayed_s = time.perf_counter() - begin
    at, before, after = (
        _time(_BEFORE, cell, revision),
        _time(_BEFORE, cell, revision - 1),
        _time(_AFTER, cell, revision),
    )
    settings = cell_settings.load(cell.settings)
    known_bands = bands()
    policy = Policy(
        bands=tuple(known_bands),
        scorer=settings.scorer,
        batch_in_prod_by_reservation=settings.batch_in_prod_by_reservation,
        crashed_pair_s=settings.crashed_pair_s,
    )
    now = (request.time or at or cell.created_at).timestamp()
    picture = picture_of(state, request, bands=known_bands, reasons=reasons_of(state, policy, now=now))
    return PastMoment(picture=picture, time=at, before=before, after=after, replayed_s=round(replayed_s, 4))


def _time(statement: str, cell: Cell, revision: int) -> dt.datetime | None:
    rows = query(statement, [cell.id, revision])
    return rows[0][0] if rows else None
