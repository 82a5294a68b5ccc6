"""The console's page that counts the tasks that left their machines, by how much of their notice period they received.
The notice period is the time between SIGTERM and SIGKILL (§2.3).
"""

from __future__ import annotations

from quota.admin import FactsAdmin


class NoticeCountAdmin(FactsAdmin):
    list_display = ["day", "cell", "cause", "delivered", "number"]
    list_filter = ["cell", "cause", "delivered"]
    list_select_related = ["cell"]
    date_hierarchy = "day"
