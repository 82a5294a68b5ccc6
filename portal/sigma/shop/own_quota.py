"""The quota that a tenant already has, and how much its jobs use, so that users do not buy too much (§2.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portal.sigma.shop.resource_labels import LABELS
from quota.admission.suggested_quota import usage_of
from quota.models import QuotaUse, Tenant
from quota.pricing.price_formula import UNIT
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import NAMES, ZERO, Vector


@dataclass(frozen=True, slots=True)
class Own:
    """The quota and the usage of a tenant in a band of a cell. `hours`: the number of hours for which usage is known.

    `rows`: for each resource, its name and label, the amount that live jobs request (`asks`), and its usage (`use`).
    `suggested`: the largest amount that the jobs requested together in any hour. `leaner`: the quota that is enough for
    the measured usage, or zeros if it equals `suggested`.
    """

    rows: list[dict[str, Any]]
    hours: int
    suggested: Vector
    leaner: Vector


def own_of(principal: Principal, tenant: Tenant, cell: str, band: str) -> Own | None:
    """Return the quota and the usage of a tenant in a band of a cell, or None if the tenant never had quota in this
    band. Makes four queries.
    """
    usage = usage_of(principal, tenant, cell, band)
    uses = QuotaUse.objects.filter(tenant=tenant, cell=cell, band__name=band)
    asks = uses.values_list("used", flat=True).first() or ZERO
    used = {one.name: one for one in usage.resources}
    rows = [
        {"name": name, "label": label, "asks": asks[NAMES.index(name)], "use": used[name]}
        for name, label in LABELS.items()
        if used[name].granted or used[name].asked or asks[NAMES.index(name)]
    ]
    if not rows:
        return None
    suggested = tuple(used[name].suggested if name in UNIT else 0 for name in NAMES)
    leaner = tuple(used[name].leaner if name in UNIT else 0 for name in NAMES)
    return Own(rows, usage.hours, suggested, leaner if leaner != suggested else ZERO)
