"""Verdicts: the reasons why tasks are pending, as the last pass found them, stored per job (§2.6). They are not in the
journal.

Passes run many times per second, and most verdicts stay the same, so only changes are written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from django.db import transaction

from scheduling.core.explaining.unplaced_tasks import of_job
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.reasons import Why
from scheduling.journal.sql import execute

# Seconds after which values that change in each pass (tasks ahead, expected start) are written again.
FRESH_S = 5.0
# Largest number of rows that are written after one pass. The others follow after later passes; new rows come first.
MOST_ROWS = 300
# Interval between searches for rows of jobs without pending tasks, which another master may have left.
SWEEP_EVERY_S = 60.0


class _Row(NamedTuple):
    reasons: int  # hash of the reasons, without values that change in each pass
    all: int  # hash of the whole verdict
    at: float


@dataclass(slots=True)
class VerdictCache:
    """The verdicts (reasons why tasks are pending) that a master has written, so that it need not write the same
    verdict again. A new master starts with an empty cache.
    """

    rows: dict[int, _Row] = field(default_factory=dict)  # by job id
    swept: float = float("-inf")


def store(
    cell_id: int, plan: Plan, *, book: VerdictCache | None = None, now: float = 0.0, most: int = MOST_ROWS
) -> int:
    """Store why the pending tasks that `plan` could not place are pending, one row per job. Return the number of
    written rows.

    `book`: the verdicts that this master has written before; only changes are written. `now`: seconds on any clock.
    `most`: the largest number of rows to write. Verdicts on tasks that the pass did not examine stay, and so do those
    on jobs of other schedulers. Makes at most three statements for any number of jobs.
    """
    book = book if book is not None else VerdictCache()
    by_job: dict[int, list[tuple[Why, int]]] = {}
    for why in plan.unplaced:
        for job_id, number in why.tasks:
            whys = by_job.setdefault(job_id, [])
            if why.code:
                whys.append((why, number))
    hashes = {id(why): _hashes(why) for why in plan.unplaced}
    due: list[tuple[float, int, _Row]] = []
    for job_id, whys in by_job.items():
        if not whys:
            continue
        known = book.rows.get(job_id)
        row = _Row(
            hash(tuple((hashes[id(why)][0], number) for why, number in whys)),
            hash(tuple((hashes[id(why)][1], number) for why, number in whys)),
            now,
        )
        if known is None:
            due.append((float("-inf"), job_id, row))
        elif known.reasons != row.reasons or (known.all != row.all and now - known.at >= FRESH_S):
            due.append((known.at, job_id, row))
    due = sorted(due)[:most]
    # If the pass was cut, verdicts on tasks that it did not examine stay.
    over = [] if plan.stats.cut else [job_id for job_id in book.rows if job_id not in by_job]
    with transaction.atomic():
        if now - book.swept >= SWEEP_EVERY_S:
            book.swept = now
            execute(
                "DELETE FROM scheduling_pendingverdict AS v USING scheduling_job AS j"
                " WHERE j.id = v.job_id AND j.cell_id = %s AND j.tasks_pending = 0",
                [cell_id],
            )
        if over:
            execute("DELETE FROM scheduling_pendingverdict WHERE job_id = ANY(%s)", [over])
        if due:
            texts = [
                msgspec.json.encode([of_job(why, job_id) for why, _ in by_job[job_id]]).decode() for _, job_id, _ in due
            ]
            execute(
                "INSERT INTO scheduling_pendingverdict (job_id, revision, at, whys)"
                " SELECT n.id, %s, clock_timestamp(), n.whys::jsonb"
                " FROM unnest(%s::bigint[], %s::text[]) AS n(id, whys) JOIN scheduling_job AS j ON j.id = n.id"
                " ON CONFLICT (job_id) DO UPDATE SET whys = excluded.whys, revision = excluded.revision,"
                " at = excluded.at",
                [plan.revision, [job_id for _, job_id, _ in due], texts],
            )
    for job_id in over:
        del book.rows[job_id]
    for _, job_id, row in due:
        book.rows[job_id] = row
    return len(due)


def read(whys: object) -> list[Why]:
    """Return the reasons why tasks of a job are pending, from the JSON in `PendingVerdict.whys`."""
    return msgspec.convert(whys, list[Why])


def _hashes(why: Why) -> tuple[int, int]:
    """Return two hashes of `why`, from which a later pass finds what has changed: one of the reasons without values
    that change in each pass, and one of everything except its tasks and its revision.
    """
    said = msgspec.structs.replace(why, tasks=(), revision=0)
    lasting = msgspec.structs.replace(said, ahead=0, ahead_of=(), ahead_tenants=0, places=(), expected=None)
    return hash(lasting), hash(said)
