"""Answers requests for past moments of a cell. Runs in the process that keeps past states in memory."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import structlog

from quota.admission.admission import bands
from quota.vocabulary.errors import NotFound, Rejected
from scheduling.core.vocabulary.policy import Policy
from scheduling.history.archive.reading import ArchivedEvents
from scheduling.history.checkpoints.state_at_moment import revision_at
from scheduling.history.moments.kept_states import StateKeeper
from scheduling.history.moments.messages import MomentAnswer, MomentRequest, PastMoment
from scheduling.history.moments.past_cell import picture_of
from scheduling.history.moments.reasons import reasons_of
from scheduling.journal.sql import query
from scheduling.models import Cell
from scheduling.policy import cell_settings

log = structlog.get_logger(__name__)

_BEFORE = (
    "SELECT time FROM scheduling_event WHERE cell_id = %s AND revision <= %s ORDER BY revision DESC, seq DESC LIMIT 1"
)
_AFTER = "SELECT time FROM scheduling_event WHERE cell_id = %s AND revision > %s ORDER BY revision, seq LIMIT 1"


def answer(keeper: StateKeeper, request: MomentRequest) -> MomentAnswer:
    """Return the answer to a request. If the request is rejected, the answer contains the rejection."""
    try:
        return MomentAnswer(moment=moment_of(keeper, request))
    except Rejected as problem:
        return MomentAnswer(
            code=problem.code, detail=problem.detail, fields=dict(problem.fields), status=problem.status
        )


def moment_of(keeper: StateKeeper, request: MomentRequest) -> PastMoment:
    """Return a cell at the revision or time of a request. Raises `Rejected` if the cell never had this revision, or if
    the state cannot be rebuilt.
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
    at, before, after = _neighbours(cell, revision)
    settings = cell_settings.load(cell.settings)
    known_bands = bands()
    policy = Policy(
        bands=tuple(known_bands),
        scorer=settings.scorer,
        batch_in_prod_by_reservation=settings.batch_in_prod_by_reservation,
        crashed_pair_s=settings.crashed_pair_s,
        maintenance_horizon_s=settings.maintenance_horizon_s,
    )
    now = (request.time or at or cell.created_at).timestamp()
    picture = picture_of(state, request, bands=known_bands, reasons=reasons_of(state, policy, now=now))
    return PastMoment(picture=picture, time=at, before=before, after=after, replayed_s=round(replayed_s, 4))


def _neighbours(cell: Cell, revision: int) -> tuple[dt.datetime | None, dt.datetime | None, dt.datetime | None]:
    """Return the times of a revision, of the one before and of the one after; None for those that are unknown."""
    try:
        return _newest_until(cell, revision), _newest_until(cell, revision - 1), _oldest_after(cell, revision)
    except Rejected as problem:  # the state was rebuilt, so the moment can be shown
        log.warning(
            "cannot find when the cell changed before and after the requested time; the answer lacks these times",
            cell=cell.name,
            error=problem.detail,
        )
        return None, None, None


def _newest_until(cell: Cell, revision: int) -> dt.datetime | None:
    if revision > cell.journal_floor and (rows := query(_BEFORE, [cell.id, revision])):
        return _first_time(rows)
    older = ArchivedEvents(cell, everything=True).before((revision + 1, -1), limit=1).events
    return older[0].time if older else None


def _oldest_after(cell: Cell, revision: int) -> dt.datetime | None:
    if revision < cell.journal_floor:
        later = ArchivedEvents(cell, everything=True).after((revision + 1, -1), limit=1).events
        if later:
            return later[0].time
    rows = query(_AFTER, [cell.id, revision])
    return _first_time(rows) if rows else None


def _first_time(rows: list[tuple[Any, ...]]) -> dt.datetime:
    found: dt.datetime = rows[0][0]
    return found
