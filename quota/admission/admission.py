"""Admission control (§2.5). It runs inside the transaction that submits or changes a job.

    requests ─► bands ─► QuotaUse rows (locked) and budgets ─► grants in force ─► charged | Rejected

The sum of the limits of the tenant's live jobs at a band in a cell is compared with the grants in force. The actual
usage of the jobs does not matter. A grant is in force from its start until its grace period ends. A change is rejected
only for a resource of which it requests more than before. Priority zero is free and unlimited, also for tenants without
money.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from django.db import connection

from quota import clock
from quota.models import QuotaUse
from quota.vocabulary.bands import FREE_PRIORITY, Band, band_of
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import NAMES, PORTS, SIZE, ZERO, Vector, add, describe

# Ports belong to a machine, not to a tenant. Named resources of a cell are not sold.
COUNTED = tuple(index for index in range(SIZE) if index != PORTS)
# Actions of a spent budget that stop submissions, except at the free priority.
STOPPING = ("stop-submitting", "drop")
_MOST = 2**63 - 1  # the largest number that a column stores


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A request to change the sum of the limits of a tenant's jobs by `change`. After a negative `change`, the tenant
    uses less quota.
    """

    tenant_id: int
    tenant: str
    priority: int
    change: Vector


def bands() -> list[Band]:
    """Return all priority bands, highest first."""
    return [band for _, band in bands_with_ids()]


def admit(
    *, cell: str, asks: Sequence[AdmissionRequest], read: Sequence[tuple[int, Band]] | None = None
) -> list[Rejected | None]:
    """Handle the requests `asks` in order: add each to the used quota, or reject it if it exceeds the granted quota.

    `read`: the bands with their ids, if the caller has read them in this transaction.

    Returns one result per request: None if it is admitted, or else the rejection. The codes of rejections are
    `quota-exceeded`, `budget-exhausted`, `no-band` and `too-large`. Locks the `QuotaUse` rows of all (tenant, band)
    pairs in order of their ids, until the caller's transaction ends. Makes four queries for any number of requests, or
    five if a pair has no row yet.
    """
    read = bands_with_ids() if read is None else read
    known = {band.name: identity for identity, band in read}
    ranges = [band for _, band in read]
    verdicts: list[Rejected | None] = [None] * len(asks)
    placed: list[tuple[int, AdmissionRequest, str]] = []
    for position, ask in enumerate(asks):
        if ask.priority == FREE_PRIORITY:
            continue
        try:
            placed.append((position, ask, band_of(ask.priority, ranges).name))
        except LookupError as error:
            verdicts[position] = Rejected("no-band", str(error), fields={"priority": str(error)})
    if not placed:
        return verdicts
    pairs = sorted({(ask.tenant_id, known[band]) for _, ask, band in placed})
    used, stopped = _lock_use(cell, pairs)
    granted = granted_now(cell, pairs)
    changed: set[tuple[int, int]] = set()
    for position, ask, band in placed:
        pair = (ask.tenant_id, known[band])
        after = add(used[pair], ask.change[:SIZE])
        verdict = _verdict(ask, cell, band, granted[pair], used[pair], after, stopped.get(ask.tenant_id, ""))
        if verdict is None:
            used[pair] = tuple(max(0, value) for value in after)
            changed.add(pair)
        verdicts[position] = verdict
    _store_use(cell, {pair: used[pair] for pair in changed})
    return verdicts


def excess(*, cell: str, tenant_id: int, band_id: int) -> Vector:
    """Return, per resource, the amount that the tenant's live jobs request beyond its grants, or 0."""
    used = QuotaUse.objects.filter(cell=cell, tenant_id=tenant_id, band_id=band_id).values_list("used").first()
    if used is None:
        return ZERO
    granted = granted_now(cell, [(tenant_id, band_id)])[tenant_id, band_id]
    return tuple(max(0, used[0][i] - granted[i]) if i in COUNTED else 0 for i in range(SIZE))


def release(*, cell: str, asks: Sequence[AdmissionRequest]) -> None:
    """Subtract the limits of ended jobs from the quota that their tenants use. In each request, `change` has the job's
    limits as positive values.
    """
    back = [AdmissionRequest(a.tenant_id, a.tenant, a.priority, tuple(-v for v in a.change)) for a in asks]
    admit(cell=cell, asks=back)


def granted_now(
    cell: str, pairs: Iterable[tuple[int, int]], *, at: dt.datetime | None = None
) -> dict[tuple[int, int], Vector]:
    """Return the sum of the grants in force now, or at the time `at`, by (tenant id, band id). Makes one query.

    A grant is in force if `starts_at` ≤ now < `grace_until`; a grant without a grace period is in force until
    `ends_at`. The sums may exceed 64 bits.
    """
    total = dict.fromkeys(pairs, ZERO)
    now = at or clock.now()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tenant_id, band_id, amounts FROM quota_quota WHERE cell = %s AND tenant_id = ANY(%s)"
            " AND starts_at <= %s AND (ends_at IS NULL OR coalesce(grace_until, ends_at) > %s)",
            [cell, sorted({tenant for tenant, _ in total}), now, now],
        )
        for tenant_id, band_id, amounts in cursor.fetchall():
            pair = (tenant_id, band_id)
            if pair in total:
                total[pair] = add(total[pair], amounts[:SIZE])
    return total


def bands_with_ids() -> list[tuple[int, Band]]:
    """Return the bands with their ids, highest first."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, name, low, high, prod, preempts_within FROM quota_priorityband ORDER BY low DESC")
        return [(identity, Band(*columns)) for identity, *columns in cursor.fetchall()]


def _verdict(
    ask: AdmissionRequest, cell: str, band: str, granted: Vector, used: Vector, after: Vector, stopped: str
) -> Rejected | None:
    grows = any(ask.change[i] > 0 for i in COUNTED)
    if grows and stopped:
        return _exhausted(ask, cell, band, stopped)
    large = [NAMES[i] for i in range(SIZE) if after[i] > _MOST]
    if large:
        return _too_large(ask, cell, band, large)
    short = {
        NAMES[i]: {"asked": ask.change[i], "granted": granted[i], "in_use": used[i], "short": after[i] - granted[i]}
        for i in COUNTED
        if ask.change[i] > 0 and after[i] > granted[i]
    }
    if not short:
        return None
    parts = "; ".join(
        f"{name}: {describe(NAMES.index(name), f['asked'])} requested, "
        f"{describe(NAMES.index(name), max(0, f['granted'] - f['in_use']))} left of "
        f"{describe(NAMES.index(name), f['granted'])}, short by {describe(NAMES.index(name), f['short'])}"
        for name, f in short.items()
    )
    return Rejected(
        "quota-exceeded",
        f"tenant {ask.tenant} has too little {band} quota in cell {cell}: {parts}. "
        f"Lower the limits, buy quota, or submit at priority {FREE_PRIORITY}, which is free.",
        fields={f"limit.{name}": f"short by {describe(NAMES.index(name), f['short'])}" for name, f in short.items()},
        figures={"tenant": ask.tenant, "cell": cell, "band": band, "short": short},
        status=403,
    )


def _exhausted(ask: AdmissionRequest, cell: str, band: str, stopped: str) -> Rejected:
    return Rejected(
        "budget-exhausted",
        f"the budget of tenant {ask.tenant} is spent, so no more can be submitted in band {band}. Request a higher "
        f"budget, or submit at priority {FREE_PRIORITY}, which is free.",
        fields={"tenant": "the budget is spent"},
        figures={"tenant": ask.tenant, "cell": cell, "band": band, "action": stopped},
        status=403,
    )


def _too_large(ask: AdmissionRequest, cell: str, band: str, names: Sequence[str]) -> Rejected:
    return Rejected(
        "too-large",
        f"with this change, all jobs of tenant {ask.tenant} in band {band} of cell {cell} together would request more"
        f" {', '.join(names)} than the portal can count, which is {_MOST}; lower the limits or the number of tasks",
        fields={f"limit.{name}": f"the sum of all jobs is more than {_MOST}" for name in names},
        figures={"tenant": ask.tenant, "cell": cell, "band": band, "most": _MOST},
    )


def _lock_use(cell: str, pairs: list[tuple[int, int]]) -> tuple[dict[tuple[int, int], Vector], dict[int, str]]:
    """Lock the `QuotaUse` rows of the given pairs (tenant id, band id).

    Return two dicts. The first contains the used quota by pair. The second contains the action of the tenant's budget
    by tenant id, but only for budgets that are used up and forbid the tenant to submit jobs.
    """
    rows = _select_use(cell, pairs)
    for ask_again in (_insert_use, _select_use):  # select again rows that another transaction has inserted meanwhile
        found = {(tenant, band) for tenant, band, _, _ in rows}
        if missing := [pair for pair in pairs if pair not in found]:
            rows += ask_again(cell, missing)
    used = {(tenant, band): tuple(vector) for tenant, band, vector, _ in rows}
    return used, {tenant: action for tenant, _, _, action in rows if action}


_UseRow = tuple[int, int, list[int], str | None]
_BUDGET = (
    " LEFT JOIN quota_budget AS b ON b.tenant_id = u.tenant_id AND b.exhausted_at IS NOT NULL AND b.action = ANY(%s)"
)


def _select_use(cell: str, pairs: list[tuple[int, int]]) -> list[_UseRow]:
    tenants, band_ids = zip(*pairs, strict=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT u.tenant_id, u.band_id, u.used, b.action FROM quota_quotause AS u"
            " JOIN unnest(%s::bigint[], %s::bigint[]) AS wanted(t, b)"
            f" ON u.cell = %s AND u.tenant_id = wanted.t AND u.band_id = wanted.b{_BUDGET}"
            " ORDER BY u.id FOR UPDATE OF u",
            [list(tenants), list(band_ids), cell, list(STOPPING)],
        )
        return cast("list[tuple[int, int, list[int], str | None]]", cursor.fetchall())


def _insert_use(cell: str, pairs: list[tuple[int, int]]) -> list[_UseRow]:
    tenants, band_ids = zip(*pairs, strict=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH u AS (INSERT INTO quota_quotause (tenant_id, cell, band_id, used)"
            " SELECT t, %s, b, %s FROM unnest(%s::bigint[], %s::bigint[]) AS wanted(t, b)"
            " ORDER BY t, b ON CONFLICT (tenant_id, cell, band_id) DO NOTHING RETURNING tenant_id, band_id, used)"
            f" SELECT u.tenant_id, u.band_id, u.used, b.action FROM u{_BUDGET}",
            [cell, list(ZERO), list(tenants), list(band_ids), list(STOPPING)],
        )
        return cast("list[tuple[int, int, list[int], str | None]]", cursor.fetchall())


def _store_use(cell: str, used: dict[tuple[int, int], Vector]) -> None:
    if not used:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE quota_quotause AS u SET used = n.used::bigint[]"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) AS n(t, b, used)"
            " WHERE u.cell = %s AND u.tenant_id = n.t AND u.band_id = n.b",
            [
                [tenant for tenant, _ in used],
                [band for _, band in used],
                ["{" + ",".join(map(str, vector)) + "}" for vector in used.values()],
                cell,
            ],
        )
