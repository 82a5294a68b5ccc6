"""The SRE console's pages of this app, one module a noun.

Changes go through services, which validate and record them; the rest is read only. Nothing registers itself:
`portal.admin_site` puts `PAGES` of every app on its site, so that no app has to know the portal.
"""

from __future__ import annotations

from django.db.models import Model
from unfold.admin import ModelAdmin

from quota.admin import access, bands, grants, market, money, notices, orders, prices, records, tenants
from quota.admin.base import FactsAdmin, ServiceAdmin, ServiceForm, principal_of, vector_text

__all__ = ["PAGES", "FactsAdmin", "ServiceAdmin", "ServiceForm", "principal_of", "vector_text"]

PAGES: dict[type[Model], type[ModelAdmin]] = {
    **tenants.PAGES,
    **access.PAGES,
    **bands.PAGES,  # type: ignore[dict-item]
    **prices.PAGES,
    **grants.PAGES,
    **market.PAGES,
    **orders.PAGES,  # type: ignore[dict-item]
    **money.PAGES,
    **notices.PAGES,
    **records.PAGES,  # type: ignore[dict-item]
}
