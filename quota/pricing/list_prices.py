"""List prices: what quota costs without the surcharge for scarce capacity, for several cells at once. Prices of orders
add this surcharge (`price_lists.quote_preview`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from quota import clock
from quota.models import PriceList
from quota.pricing.capacity_for_sale import bands_by_name
from quota.pricing.price_formula import priced, total
from quota.pricing.price_lists import default_list
from quota.vocabulary.resources import SIZE

DAYS = 30


class ListPrices:
    """The price lists of some cells that are in force now. Makes at most two queries."""

    def __init__(self, cells: Collection[str]) -> None:
        rows = (
            PriceList.objects.filter(cell__in=cells, valid_from__lte=clock.now())
            .order_by("cell", "-valid_from", "-version")
            .distinct("cell")
        )
        known: Mapping[str, PriceList] = {row.cell: row for row in rows}
        self._lists = {cell: known.get(cell) or default_list(cell) for cell in cells}

    def of(self, cell: str, band: str, amounts: Sequence[int]) -> int:
        """Return the price of quota for `DAYS` days in micro-credits. `band`: the name of a band, or "" for the free
        priority, which costs nothing. Raises `Rejected` if the price exceeds 64 bits.
        """
        if not band:
            return 0
        factor = bands_by_name()[band].price_milli
        seconds = DAYS * 86_400
        return total(priced(amounts[:SIZE], seconds, self._lists[cell].base, factor, (), (0,) * SIZE))
