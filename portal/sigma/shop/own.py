"""What a tenant has already, and what its jobs really used of it, so that nobody need over-buy (§2.5)."""

from __future__ import annotations

from dataclasses import dataclass

from portal.sigma.shop.sizes import LABELS
from quota.admission.sizing import ResourceUse, usage_of
from quota.models import QuotaUse, Tenant
from quota.pricing.arithmetic import UNIT
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import NAMES, SIZE, ZERO, Vector


@dataclass(frozen=True, slots=True)
class OwnRow:
    """`asks`: what live jobs ask for now; `use`: over the last days."""

    name: str
    label: str
    asks: int
    use: ResourceUse


@dataclass(frozen=True, slots=True)
class Own:
    """`hours`: in which jobs lived, 0: nothing is known of them. `suggested`, `leaner`: sizes to take over."""

    rows: list[OwnRow]
    hours: int
    suggested: Vector
    leaner: Vector

    @property
    def suggested_any(self) -> bool:
        return any(self.suggested)

    @property
    def leaner_any(self) -> bool:
        return any(self.leaner) and self.leaner != self.suggested


def own_of(principal: Principal, tenant: Tenant, cell: str, band: str) -> Own | None:
    """None for who has nothing there and never had: four queries."""
    usage = usage_of(principal, tenant, cell, band)
    asks = (
        QuotaUse.objects.filter(tenant=tenant, cell=cell, band__name=band)
        .values_list("used", flat=True)
        .first()
    ) or ZERO
    used = {one.name: one for one in usage.resources}
    rows = [
        OwnRow(name, str(LABELS[name]), asks[NAMES.index(name)], used[name])
        for name in LABELS
        if used[name].granted or used[name].asked or asks[NAMES.index(name)]
    ]
    if not rows:
        return None
    return Own(rows, usage.hours, _vector(used, "suggested"), _vector(used, "leaner"))


def _vector(used: dict[str, ResourceUse], what: str) -> Vector:
    return tuple(getattr(used[name], what) if name in UNIT else 0 for name in NAMES[:SIZE])
