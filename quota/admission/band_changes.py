"""Creating and changing priority bands (§2.5). Only SREs may change bands."""

from __future__ import annotations

import re

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.db.models.functions import Coalesce

from quota import clock, records
from quota.models import HOLDING, Order, PriorityBand, Quota, Tenant
from quota.models.fields import DNS_LABEL, dns_label
from quota.notifications.notices import notify
from quota.vocabulary.bands import DEFAULT_BANDS, DEFAULT_FACTORS, MAX_FACTOR, MAX_PRIORITY, PLAIN, Band, Factors
from quota.vocabulary.errors import Conflict, invalid
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import format_number


def band_set(
    *, principal: Principal, band: Band, price_milli: int | None = None, oversell_milli: int | None = None
) -> PriorityBand:
    """Create a band, or change the band with this name. If `price_milli` or `oversell_milli` is None, this factor of an
    existing band stays unchanged.

    Sold quota stays valid and keeps its price; `quota.pricing.band_preview` shows the effect of a change. Raises
    `Rejected` if a value is not valid; the error names the field. Raises `Conflict` if bands would overlap.
    """
    require(principal, Action.PLATFORM_ADMIN)
    _range_checked(band)
    try:
        with records.write(principal) as entry, transaction.atomic():
            before = PriorityBand.objects.select_for_update().filter(name=band.name).first()
            factors = factors_of(before, band.name, price_milli, oversell_milli)
            _factors_checked(band, factors)
            row, _ = PriorityBand.objects.update_or_create(
                name=band.name, defaults={**band._asdict(), **factors._asdict()}
            )
            entry.append("band.set", **band._asdict(), **factors._asdict())
            if before is not None and (before.as_band(), factors_of(before, band.name)) != (band, factors):
                _notify(entry, row)
    except IntegrityError as error:
        detail = f"the priorities {band.low} to {band.high} overlap another band; choose priorities outside other bands"
        raise Conflict("bands-overlap", detail, fields={"low": detail}) from error
    return row


def factors_of(
    row: PriorityBand | None, name: str, price_milli: int | None = None, oversell_milli: int | None = None
) -> Factors:
    """Return the two factors of a band: its price factor, and its over-selling factor. A factor that is None is read
    from `row`.

    If `row` is None too, the factor is the default for the band name `name`.
    """
    known = Factors(row.price_milli, row.oversell_milli) if row else DEFAULT_FACTORS.get(name, PLAIN)
    return Factors(
        known.price_milli if price_milli is None else price_milli,
        known.oversell_milli if oversell_milli is None else oversell_milli,
    )


def bands_ensure(*, principal: Principal) -> None:
    """Create each of the four priority bands of the Borg paper that does not exist yet, with the band's default
    factors.
    """
    known = set(PriorityBand.objects.values_list("name", flat=True))
    for band in DEFAULT_BANDS:
        if band.name not in known:
            band_set(principal=principal, band=band)


def _range_checked(band: Band) -> None:
    if re.match(DNS_LABEL, band.name) is None:
        raise invalid("name", str(dns_label.message))
    if not 0 <= band.low <= band.high <= MAX_PRIORITY:
        detail = f"the priorities {band.low} to {band.high} are not accepted; give 0 <= low <= high <= {MAX_PRIORITY}"
        raise invalid("low", detail)


def _factors_checked(band: Band, factors: Factors) -> None:
    for name, value in factors._asdict().items():
        if not 0 <= value <= MAX_FACTOR:
            raise invalid(name, f"the factor {value} is out of range; give 0 to {MAX_FACTOR} thousandths")
    if band.prod and factors.oversell_milli > PLAIN.oversell_milli:
        raise invalid(
            "oversell_milli",
            f"the over-selling factor of a prod band is too high; give at most {PLAIN.oversell_milli}",
            "prod-oversold",
        )


def _notify(entry: records.RecordEntry, row: PriorityBand) -> None:
    """Notify all tenants that have quota at the band `row`, or that have ordered quota at this band for a later
    period.
    """
    owns = (
        Quota.objects.filter(band=row)
        .annotate(until=Coalesce("grace_until", "ends_at"))
        .filter(Q(until=None) | Q(until__gt=clock.now()))
    )
    waits = Order.objects.filter(band=row, state__in=HOLDING)
    affected = Q(pk__in=owns.values("tenant")) | Q(pk__in=waits.values("tenant"))
    for tenant in Tenant.objects.filter(affected).order_by("id"):
        notify(
            entry,
            tenant,
            "band.changed",
            f"Band {row.name} has changed",
            f"Band {row.name} now holds priorities {row.low} to {row.high} and costs"
            f" {format_number(row.price_milli / 1000)} times the base price. Existing orders keep their price.",
            band=row.name,
            price_milli=row.price_milli,
            low=row.low,
            high=row.high,
        )
