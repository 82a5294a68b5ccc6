"""Changes of something that jobs use, such as a secret, in one transaction with the journals of these jobs.

cells of the jobs that use it: lock ─► tenant: lock ─► rows of it: lock ─► jobs again ─► write
        ▲                                                                      │
        └────────────────── a job in another cell has come ◄───────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TypeVar

from quota import records
from quota.models import Tenant
from quota.records import RecordEntry
from quota.vocabulary.permissions import Principal
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.secrets.job_uses import UsingJob

Result = TypeVar("Result")


class _MoreCells(Exception):
    """Raised to undo the locks of a change that needs the rows of more cells. `cells`: their ids."""

    def __init__(self, cells: set[int]) -> None:
        super().__init__("more cells")
        self.cells = cells


def write_with_users(
    principal: Principal,
    tenant: Tenant,
    *,
    users: Callable[[], list[UsingJob]],
    lock: Callable[[], Iterable[object]],
    write: Callable[[RecordEntry, Mapping[int, JournalEntry], list[UsingJob]], Result],
) -> Result:
    """Return the result of `write`, which runs in one transaction with the journals of all cells in which live jobs use
    the changed row. `users`: reads what uses it. `lock`: a query that locks the row.

    The jobs are read while the row is locked, so that no submission that has read the row is still in progress. If one
    of them is in a cell whose row is not locked, the transaction starts again with this cell too.
    """
    cells = {job.cell_id for job in users() if job.job_id}
    while True:
        try:
            with records.write(principal) as entry, ExitStack() as stack:
                entries = {cell_id: stack.enter_context(journal.write(cell_id, principal)) for cell_id in sorted(cells)}
                Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
                list(lock())
                using = users()
                new = {job.cell_id for job in using if job.job_id} - cells
                if new:
                    raise _MoreCells(new)
                return write(entry, entries, using)
        except _MoreCells as more:
            cells |= more.cells
