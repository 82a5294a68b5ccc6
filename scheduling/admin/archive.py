"""The console's page that lists the files of the archive, which contain old rows of a cell's history. The page is
read-only: only the archiver writes files (`scheduling.history.archive`).
"""

from __future__ import annotations

from quota.admin import FactsAdmin


class ArchiveFileAdmin(FactsAdmin):
    list_display = ["cell", "table", "day", "first", "last", "rows", "bytes", "state", "written_at"]
    list_filter = ["cell", "table", "state"]
    list_select_related = ["cell"]
    ordering = ["-id"]
    fields = [
        *("cell", "table", "day", "first", "last", "rows", "bytes", "state"),
        *("sha256", "content", "schema_version", "written_at"),
    ]
