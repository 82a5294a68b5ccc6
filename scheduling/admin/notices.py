"""The console's page with counts of stopped tasks, by how much of their notice period they received (§2.3)."""

from __future__ import annotations

from quota.admin import FactsAdmin


class NoticeCountAdmin(FactsAdmin):
    list_display = ["day", "cell", "cause", "delivered", "number"]
    list_filter = ["cell", "cause", "delivered"]
    list_select_related = ["cell"]
    date_hierarchy = "day"
