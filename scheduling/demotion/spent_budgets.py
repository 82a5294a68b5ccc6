"""Jobs of a tenant whose budget is spent, and is to drop them, go to the free priority (§2.5).

All whose usage is charged, the hours of `drop_after_hours` after it was spent. `services.lowering` says how.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Q, QuerySet

from quota import records
from quota.billing.spent_budgets import SpentBudget, drops_due, is_due
from quota.notifications.notices import notify
from quota.vocabulary.bands import FREE_PRIORITY
from scheduling.demotion.demotion import AT_ONCE, jobs_demote, jobs_with_undo
from scheduling.models import Cell, Job


def spent_budgets_drop(cell: Cell) -> list[Job]:
    """Lower the jobs of every tenant whose spent budget is due in this cell. Returns the jobs lowered.

    Locks as `jobs_demote`.
    """
    return [job for spent in drops_due(cell.name) for job in jobs_demote(cell, spent.tenant, _Spent(cell, spent))]


@dataclass(frozen=True, slots=True)
class _Spent:
    cell: Cell
    spent: SpentBudget

    @property
    def reason(self) -> str:
        return f"the budget of {self.spent.tenant.name} has been spent since {self.spent.since:%F %R} UTC"

    def chosen(self, live: QuerySet[Job]) -> Iterable[Job]:
        if not is_due(self.spent.tenant.pk, self.cell.name):
            return ()
        charged = Q()
        for band in self.spent.bands:
            charged |= Q(priority__gte=band.low, priority__lte=band.high)
        return live.filter(charged)[:AT_ONCE]

    def report(self, entry: records.RecordEntry, jobs: Sequence[Job]) -> None:
        tenant, cell = self.spent.tenant, self.cell.name
        data = {"cell": cell, "jobs": [job.name for job in jobs]}
        entry.append("budget.dropped", tenant=tenant.name, **data)
        notify(
            entry,
            tenant,
            "budget.dropped",
            f"{len(jobs)} jobs in cell {cell} were demoted to the free priority",
            f"{self.reason[0].upper()}{self.reason[1:]}, and these charged jobs were demoted to priority"
            f" {FREE_PRIORITY}, which is free: {jobs_with_undo(jobs)}",
            url=f"/jobs/?tenant={tenant.name}",
            level="urgent",
            **data,
        )
