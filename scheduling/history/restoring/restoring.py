"""The service that sets a cell back to an earlier moment, in place.

    state at the moment ─┐                                    ┌─► new history, cell.restored, new jobs end
    present state ───────┴─► differences ─► one transaction ──┼─► jobs submitted again, updated or replaced
                                                              └─► tasks ended or revived

The cell requests again what it requested then: the same jobs with the same specs, and the same tasks alive. Ordinary
events make the difference, so the journal, the archive and all readers keep the whole story, and the restore can be
undone by another one. The README names what stays as it is.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

import structlog
from django.db import transaction

from quota.vocabulary.errors import Conflict, invalid
from quota.vocabulary.permissions import Action, Principal, require, system
from scheduling.history.checkpoints.event_batches import EventsMissing, follow, news_between, numbers_between
from scheduling.history.checkpoints.rows import load_recorded
from scheduling.history.checkpoints.state_at_moment import state_at
from scheduling.history.restoring.differences import differences
from scheduling.history.restoring.outcome import MOST_NAMES, Problem, Restored, names_of_jobs, names_of_machines
from scheduling.history.restoring.steps import Steps
from scheduling.journal.sql import query
from scheduling.models import Cell

log = structlog.get_logger(__name__)

# Changes of what the cell requests. If one was made after the losses were shown, more would be lost than was shown.
_REQUESTS = ("job.submitted", "job.changed", "tasks.added", "cell.restored")
# This actor continues updates that others have started. Its changes are not requests.
_UPDATES = system("updates").name


def cell_restore(
    *,
    principal: Principal,
    cell: Cell,
    revision: int | None = None,
    time: dt.datetime | None = None,
    if_revision: int | None = None,
    dry_run: bool = False,
) -> Restored:
    """Set a cell back to a revision, or to its last change before a time. Return what is lost and what changes.

    `if_revision`: the revision of the cell when the losses were shown; required unless `dry_run`, which does
    everything and rolls it back. Raises `Conflict` if jobs were changed after `if_revision`, if nothing can be set
    back, or for a study cell, and `Rejected` if the state cannot be rebuilt. A job that cannot come back, for example
    because its quota is used, is a problem in the result and not an error. A live job that would have to end for it
    stays as it is.

    Everything is one transaction, which locks the cell's row, then tasks in the order of their ids, and the tenants'
    uses of quota. Imports heavy libraries, so web processes call `scheduling.history.restoring.requests`.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    if cell.study_of is not None:
        detail = f"cell {cell.name} is a study cell, which nobody can change; give the name of another cell"
        raise Conflict("study-cell", detail)
    if if_revision is None and not dry_run:
        raise invalid("if_revision", "if_revision is missing; give the revision that the dry run shows")
    then, now = state_at(cell, revision=revision, time=time), load_recorded(cell.id)
    try:
        numbers = numbers_between(cell, after=then.revision, upto=now.revision)
    except EventsMissing as missing:
        detail = f"revision {then.revision} is too long ago: {missing}"
        raise invalid("revision", detail, "history-missing") from None
    with transaction.atomic():
        # Rows that refer to the cell can still be inserted.
        row = Cell.objects.select_for_update(no_key=True).get(pk=cell.pk)
        seen, ended = row.revision, row.history_id
        if if_revision is not None:
            _check_unchanged(row, if_revision)
        numbers += numbers_between(row, after=now.revision, upto=seen)
        follow(now, news_between(row, after=now.revision, upto=seen, kinds=list(now._handlers)), upto=seen)
        found = differences(then, now)
        steps = Steps(principal, row, found, to=then.revision)
        row.history_id, row.history_ordinal = uuid.uuid4(), row.history_ordinal + 1
        row.earlier_histories.append(ended)
        row.save(update_fields=["history_id", "history_ordinal", "earlier_histories"])
        steps.run(ended_history=ended.hex)
        if not steps and not dry_run:
            raise _nothing_to_restore(row, then.revision, steps.problems)
        if dry_run:
            transaction.set_rollback(True)
    if not dry_run:
        log.warning("cell restored in place", cell=row.name, to=then.revision, actor=principal.name)
    return Restored(
        cell=row.name,
        revision=seen,
        to_revision=then.revision,
        events=dict(sorted(numbers.items())),
        stopped=names_of_jobs(steps.stopped),
        submitted=names_of_jobs(steps.submitted),
        changed=names_of_jobs(steps.changed),
        tasks_revived=steps.revived,
        tasks_ended=steps.ended,
        tasks_finished=steps.finished,
        tasks_elsewhere=sum(pair.elsewhere for pair in found.pairs),
        joined=names_of_machines(found.joined),
        removed=names_of_machines(found.removed),
        machines_changed=names_of_machines(found.changed),
        problems_number=len(steps.problems),
        problems=steps.problems[:MOST_NAMES],
        history="" if dry_run else str(row.history_id),
    )


def _check_unchanged(cell: Cell, shown: int) -> None:
    """Check that jobs were not changed after the revision `shown`, except by the steps of updates. Raises `Conflict` if
    they were, and `Rejected` if the journal in PostgreSQL no longer has all events since.
    """
    if not cell.journal_floor <= shown <= cell.revision:
        detail = (
            f"{shown} is not a recent revision of cell {cell.name}, whose revision is {cell.revision} now; do a dry run"
            " again"
        )
        raise invalid("if_revision", detail)
    rows = query(
        "SELECT kind, count(*) FROM scheduling_event WHERE cell_id = %s AND revision > %s"
        " AND (kind = ANY(%s) OR (kind = 'task.ended' AND data->>'how' = 'killed')) AND actor <> %s"
        " GROUP BY 1 ORDER BY 1",
        [cell.id, shown, list(_REQUESTS), _UPDATES],
    )
    if rows:
        since = ", ".join(f"{number} {kind}" for kind, number in rows)
        detail = (
            f"cell {cell.name} was not set back, because jobs were changed after revision {shown} ({since});"
            " do a dry run again, and confirm the revision that it shows"
        )
        raise Conflict("cell-changed", detail, figures={"revision": cell.revision, "events": dict(rows)})


def _nothing_to_restore(cell: Cell, revision: int, problems: Sequence[Problem]) -> Conflict:
    if not problems:
        detail = f"cell {cell.name} already requests the same jobs as at revision {revision}; nothing is set back"
        return Conflict("nothing-to-restore", detail)
    first = problems[0]
    detail = (
        f"cell {cell.name} was not set back to revision {revision}: {len(problems)} jobs differ, but none of them can"
        f" be set back; the first is job {first.job}: {first.reason}"
    )
    return Conflict("nothing-to-restore", detail, figures={"problems": len(problems)})
