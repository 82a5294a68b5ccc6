"""The money that other limits of a job save, at the list price of its cell."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from django.utils import timezone

from quota.models import PriorityBand
from quota.pricing.price_formula import FULL_MILLI, priced, total
from quota.pricing.price_lists import price_list_at
from quota.vocabulary.bands import FREE_PRIORITY
from quota.vocabulary.resources import SIZE
from scheduling.models import Job

MONTH = dt.timedelta(days=30)


class ListPrice:
    """The list price of quota for a job, without a surcharge for scarcity. Work of the free priority costs nothing."""

    def __init__(self, job: Job) -> None:
        """Read the price list and the band of the job, with two queries."""
        band = None if job.priority == FREE_PRIORITY else PriorityBand.objects.filter(name=job.band).first()
        self._factor = 0 if band is None else band.price_milli
        self._base = price_list_at(job.cell.name, timezone.now()).base if band is not None else {}

    def per_month(self, cpu_milli: float, ram_bytes: float) -> int:
        """Return the price of these amounts for 30 days in micro-credits; negative for negative amounts."""
        parts = [self._price((max(0.0, sign * cpu_milli), max(0.0, sign * ram_bytes))) for sign in (1, -1)]
        return parts[0] - parts[1]

    def _price(self, amounts: Sequence[float]) -> int:
        vector = [round(amount) for amount in amounts] + [0] * (SIZE - len(amounts))
        curve = [(0, FULL_MILLI)]
        seconds = round(MONTH.total_seconds())
        return total(priced(vector, seconds, self._base, self._factor, curve, [0] * SIZE))
