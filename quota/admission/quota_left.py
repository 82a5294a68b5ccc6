"""The quota that a tenant uses and has in several cells, read at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.db.models import F, Q
from django.db.models.functions import Coalesce

from quota import clock
from quota.admission.admission import COUNTED
from quota.models import Quota, QuotaUse
from quota.vocabulary.resources import SIZE, ZERO, Vector, add


def quota_left(tenant_id: int, cells: Collection[str]) -> Mapping[tuple[str, str], Vector]:
    """Return by (cell, band) how much of each resource the tenant may still request. An amount is negative if jobs
    request more than was granted. Pairs for which the tenant has no quota and no use are left out. Makes two queries.
    """
    now = clock.now()
    left: dict[tuple[str, str], Vector] = {}
    grants = Quota.objects.annotate(last=Coalesce(F("grace_until"), F("ends_at"))).filter(
        Q(ends_at=None) | Q(last__gt=now), tenant=tenant_id, cell__in=cells, starts_at__lte=now
    )
    for cell, band, amounts in grants.values_list("cell", "band__name", "amounts"):
        left[cell, band] = add(left.get((cell, band), ZERO), amounts[:SIZE])
    used = QuotaUse.objects.filter(tenant=tenant_id, cell__in=cells)
    for cell, band, amounts in used.values_list("cell", "band__name", "used"):
        granted = left.get((cell, band), ZERO)
        left[cell, band] = tuple(granted[i] - amounts[i] for i in range(SIZE))
    return left


def is_enough(left: Vector, change: Vector) -> bool:
    """Return whether a request may grow by `change` if `left` is what the tenant may still request."""
    return all(change[i] <= max(0, left[i]) for i in COUNTED if change[i] > 0)
