"""Changes of something that jobs use, such as a secret, in one transaction with the journals of these jobs.

cells of the jobs that use it: lock ─► tenant: lock ─► rows of it: lock ─► jobs again ─► write
        ▲                                                                      │
        └──────────────────── other cells are concerned now ◄──────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TypeVar

from quota import records
from quota.models import Tenant
from quota.records import RecordEntry
from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Principal
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.secrets.job_uses import UsingJob

Result = TypeVar("Result")
_MOST_TRIES = 10


class _OtherCells(Exception):
    """Raised to undo the locks of a change that needs the rows of other cells. `cells`: their ids."""

    def __init__(self, cells: set[int]) -> None:
        super().__init__("other cells")
        self.cells = cells


def write_with_users(
    principal: Principal,
    tenant: Tenant,
    *,
    users: Callable[[], list[UsingJob]],
    lock: Callable[[], Iterable[object]],
    write: Callable[[RecordEntry, Mapping[int, JournalEntry], list[UsingJob]], Result],
    concerned: Callable[[UsingJob], bool] = lambda user: True,
) -> Result:
    """Return the result of `write`, which runs in one transaction with the journals of all cells with a live job that
    uses the changed row. `users`: reads what uses it. `lock`: a query that locks the row. `concerned`: whether `write`
    appends an event for a job; it must append one for each such job.

    The jobs are read while the row is locked, so that no submission that has read the row is still in progress. If
    other cells are concerned by then, the transaction starts again with exactly these cells: a journal without events
    undoes everything that was written while it was open. Raises `Conflict` if this happens again and again.
    """
    cells = _cells(users(), concerned)
    for _ in range(_MOST_TRIES):
        try:
            with records.write(principal) as entry, ExitStack() as stack:
                entries = {cell_id: stack.enter_context(journal.write(cell_id, principal)) for cell_id in sorted(cells)}
                Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
                list(lock())
                using = users()
                if (now := _cells(using, concerned)) != cells:
                    raise _OtherCells(now)
                return write(entry, entries, using)
        except _OtherCells as other:
            cells = other.cells
    raise Conflict("jobs-change", "jobs that use it started or ended while it was changed; try again")


def _cells(users: Iterable[UsingJob], concerned: Callable[[UsingJob], bool]) -> set[int]:
    return {user.cell_id for user in users if user.job_id and concerned(user)}
