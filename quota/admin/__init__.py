"""The pages of this app in the SRE console, one module per kind of object.

The pages call services to make changes. The services check and record each change. All other data is read-only.
`portal.admin_site` registers the `PAGES` of every app, so that no app depends on the portal.
"""

from __future__ import annotations

from django.db.models import Model
from unfold.admin import ModelAdmin

from quota.admin import bands, grants, market, money, notices, orders, prices, records, tenants, tokens_and_capabilities
from quota.admin.base import CreateOnlyAdmin, FactsAdmin, ServiceAdmin, ServiceForm, principal_of, vector_text

__all__ = ["PAGES", "CreateOnlyAdmin", "FactsAdmin", "ServiceAdmin", "ServiceForm", "principal_of", "vector_text"]

PAGES: dict[type[Model], type[ModelAdmin]] = {
    **tenants.PAGES,
    **tokens_and_capabilities.PAGES,
    **bands.PAGES,  # type: ignore[dict-item]
    **prices.PAGES,
    **grants.PAGES,
    **market.PAGES,
    **orders.PAGES,  # type: ignore[dict-item]
    **money.PAGES,
    **notices.PAGES,
    **records.PAGES,  # type: ignore[dict-item]
}
