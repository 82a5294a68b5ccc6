"""Decides how much is credited for broken promises (pure). Amounts are micro-credits.

    breach: affected unit·seconds ─┐
                                   ├─► price of the affected part ─► at most the charge of the job ─► amount per breach
    charge of the job in the hour ─┘

The price of a part of an hour is the same share of the job's charge as the affected unit·seconds have in the job's
limit, for each resource. So it uses the prices that were in force in that hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

PENDING, EVICTIONS = "pending", "evictions"
FULL_MILLI = 1000


class HourKey(NamedTuple):
    """A job at a band in one hour. `hour`: any value that identifies the hour."""

    cell: str
    job_uid: str
    band: int
    hour: object


class CapKey(NamedTuple):
    """A job in one month of its tenant."""

    cell: str
    job_uid: str
    month: object


@dataclass(frozen=True, slots=True)
class HourCharge:
    """What a job was charged in one hour. `limit`: its limit in unit·seconds, by resource. `quota`: the cost of its
    quota, by resource. `usage`: the price of its usage.
    """

    limit: Sequence[int]
    quota: Sequence[Fraction]
    usage: int = 0


class Breach(NamedTuple):
    """Tasks of a job that were pending or evicted beyond the promise in one hour. `affected`: unit·seconds by resource.
    `share_milli`: which share of their price is credited, in thousandths.
    """

    id: int
    key: HourKey
    month: object
    kind: str
    affected: Sequence[int]
    share_milli: int = FULL_MILLI


def price_of(breach: Breach, charge: HourCharge) -> Fraction:
    """Return the exact price of the affected resources of a breach.

    Pending tasks use nothing, so only the cost of their quota counts, and at most that of the whole job. An eviction
    may be credited with the price of several hours. Its share of the usage is the smallest share of a resource.
    """
    shares = [
        Fraction(affected, limit) if limit > 0 else Fraction(0)
        for affected, limit in zip(breach.affected, charge.limit, strict=False)
    ]
    if breach.kind == PENDING:
        shares = [min(share, Fraction(1)) for share in shares]
    price = sum((share * cost for share, cost in zip(shares, charge.quota, strict=False)), start=Fraction(0))
    if breach.kind == EVICTIONS and charge.usage:
        price += charge.usage * min((share for share in shares if share), default=Fraction(0))
    return price * min(breach.share_milli, FULL_MILLI) / FULL_MILLI


def amounts(
    breaches: Iterable[Breach], charges: Mapping[HourKey, HourCharge], caps: Mapping[CapKey, int], most: int
) -> dict[int, int]:
    """Return the credited amount of each breach, by id. Amounts are rounded down.

    `caps`: what may still be credited to each job in a month: its charge less earlier credits. `most`: what may be
    credited to the tenant together. Breaches whose hour has no charge get 0. The result does not depend on the order of
    `breaches`.
    """
    left = dict(caps)
    found: dict[int, int] = {}
    for breach in sorted(breaches, key=lambda one: (one.kind != PENDING, one.key[:3], str(one.key.hour), one.id)):
        cap = CapKey(breach.key.cell, breach.key.job_uid, breach.month)
        charge = charges.get(breach.key)
        exact = price_of(breach, charge) if charge is not None else Fraction(0)
        amount = max(0, min(exact.numerator // exact.denominator, left.get(cap, 0), most))
        left[cap] = left.get(cap, 0) - amount
        most -= amount
        found[breach.id] = amount
    return found
