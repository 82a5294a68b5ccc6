"""The console's page about the platform's journal: changes that belong to no cell."""

from __future__ import annotations

from unfold.paginator import InfinitePaginator

from quota.admin.base import FactsAdmin
from quota.models import Record


class RecordAdmin(FactsAdmin):
    """The page of the records of changes that belong to no cell. It shows no total number, because counting is slow."""

    list_display = ["revision", "time", "kind", "tenant", "actor", "data", "request_id"]
    search_fields = ["=tenant", "=actor", "=request_id"]
    ordering = ["-revision"]
    paginator = InfinitePaginator
    list_display_links = None


PAGES = {Record: RecordAdmin}
