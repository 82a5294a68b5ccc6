"""Priority bands (§2.5): rows that an SRE may change."""

from __future__ import annotations

from django.db import IntegrityError, transaction

from quota import records
from quota.bands import DEFAULT_BANDS, MAX_PRIORITY, Band
from quota.errors import Conflict, Refused
from quota.models import PriorityBand
from quota.permissions import Action, Principal, require


def band_set(*, principal: Principal, band: Band) -> PriorityBand:
    """Make a band, or change the one of that name. Raises `Refused` naming the field, `Conflict` on overlap."""
    require(principal, Action.PLATFORM_ADMIN)
    if not 0 <= band.low <= band.high <= MAX_PRIORITY:
        raise Refused(
            "invalid",
            f"low and high: 0 <= low <= high <= {MAX_PRIORITY}, not {band.low} and {band.high}",
            fields={"low": "out of order or range"},
        )
    try:
        with records.write(principal) as entry, transaction.atomic():
            row, _ = PriorityBand.objects.update_or_create(
                name=band.name,
                defaults={
                    "low": band.low,
                    "high": band.high,
                    "prod": band.prod,
                    "preempts_within": band.preempts_within,
                },
            )
            entry.append("band.set", **band._asdict())
    except IntegrityError as error:
        raise Conflict(
            "bands-overlap",
            f"priorities {band.low}-{band.high} overlap another band; bands never overlap (§2.5)",
            fields={"low": "overlaps another band"},
        ) from error
    return row


def bands_ensure(*, principal: Principal) -> None:
    """The four bands of the paper, where there is none of that name yet."""
    known = set(PriorityBand.objects.values_list("name", flat=True))
    for band in DEFAULT_BANDS:
        if band.name not in known:
            band_set(principal=principal, band=band)
