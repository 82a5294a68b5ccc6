"""Reads re-packings. Only SREs of the cell see them, because they name the jobs of all tenants."""

from __future__ import annotations

from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.models import Cell, Repacking, RepackingStep


def repackings_of(principal: Principal, cell: Cell) -> QuerySet[Repacking]:
    """Return the re-packings of a cell with their progress, by id: `machines`, `spares`, `freed`, `skipped` and
    `moving` count steps, `moved` counts the tasks of the steps that have begun and were not skipped.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    begun = (RepackingStep.MOVING, RepackingStep.FREED)
    counts = {
        name: Count("steps", filter=Q(steps__state=state) if name != "machines" else ~Q(steps__state=state))
        for name, state in (
            ("machines", RepackingStep.SPARE),
            ("spares", RepackingStep.SPARE),
            ("freed", RepackingStep.FREED),
            ("skipped", RepackingStep.SKIPPED),
            ("moving", RepackingStep.MOVING),
        )
    }
    moved = Coalesce(Sum("steps__moves", filter=Q(steps__state__in=begun)), 0)
    return Repacking.objects.filter(cell=cell).annotate(moved=moved, **counts).order_by("id")


def repacking_named(principal: Principal, cell: Cell, number: int) -> Repacking:
    found = repackings_of(principal, cell).filter(pk=number).first()
    if found is None:
        raise NotFound("re-packing", str(number))
    return found


def steps_of(repacking: Repacking) -> QuerySet[RepackingStep]:
    return repacking.steps.select_related("machine").order_by("id")
