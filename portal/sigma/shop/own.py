"""The quota that a tenant has, compared with the usage of its jobs, so that users do not buy too much (§2.5)."""

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
    """One resource. `asks`: the amount that live jobs request now; `use`: the usage in the last days."""

    name: str
    label: str
    asks: int
    use: ResourceUse


@dataclass(frozen=True, slots=True)
class Own:
    """All resources. `hours`: the number of hours with usage data.

    `suggested`: the highest request of the jobs. `leaner`: the amounts that are enough for the measured usage.
    """

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
    """Return the quota and the usage of a tenant in a band of a cell, or None if there never was any. Four queries."""
    usage = usage_of(principal, tenant, cell, band)
    uses = QuotaUse.objects.filter(tenant=tenant, cell=cell, band__name=band)
    asks = uses.values_list("used", flat=True).first() or ZERO
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
