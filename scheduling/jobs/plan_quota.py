"""What a plan says about the quota that a change of a job needs (§2.5)."""

from __future__ import annotations

from collections.abc import Sequence

from quota.admission import admission
from quota.models import QuotaUse
from quota.vocabulary.bands import FREE_PRIORITY, band_of
from quota.vocabulary.resources import NAMES, SIZE, ZERO, Vector, add, describe


def quota_sentences(cell: str, requests: Sequence[admission.AdmissionRequest]) -> tuple[str, ...]:
    """Return one sentence for each band in which the requests change the used quota: the quota that the tenant uses now
    and after all requests, and the granted quota. The free priority needs no quota. Makes three queries.
    """
    read = admission.bands_with_ids()
    ids, ranges = {band.name: identity for identity, band in read}, [band for _, band in read]
    changes: dict[tuple[int, str], Vector] = {}
    for ask in requests:
        if ask.priority != FREE_PRIORITY:
            key = (ask.tenant_id, band_of(ask.priority, ranges).name)
            changes[key] = add(changes.get(key, ZERO), ask.change[:SIZE])
    if not changes:
        return ()
    pairs = {(tenant, ids[band]) for tenant, band in changes}
    rows = QuotaUse.objects.filter(cell=cell, tenant__in={tenant for tenant, _ in pairs})
    used = {(row.tenant_id, row.band_id): row.used for row in rows}
    granted = admission.granted_now(cell, pairs)
    sentences = []
    for (tenant, band), change in changes.items():
        pair = (tenant, ids[band])
        parts = [
            f"{NAMES[i]}: {describe(i, now)} used now, {describe(i, max(0, now + change[i]))} afterwards, of"
            f" {describe(i, granted[pair][i])}"
            for i, now in enumerate(used.get(pair, ZERO)[:SIZE])
            if i in admission.COUNTED and change[i]
        ]
        if parts:
            sentences.append(f"Quota of band {band}: {'; '.join(parts)}.")
    return tuple(sentences)
