"""Pages of packages and their tags. They are read-only: only the tenants change packages (`scheduling.packages`)."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from quota.admin import FactsAdmin
from scheduling.models import Package


class PackageAdmin(FactsAdmin):
    list_display = ["name", "digest", "tenant", "cell", "size_bytes", "format", "uploaded_by", "uploaded_at"]
    list_filter = ["cell", "tenant", "format"]
    list_select_related = ["cell", "tenant"]
    search_fields = ["name", "=digest"]
    ordering = ["-id"]
    fields = ["cell", "tenant", "name", "digest", "size_bytes", "format", "tags_shown", "uploaded_by", "uploaded_at"]

    @display(description=_("tags of the package"))
    def tags_shown(self, package: Package) -> str:
        return ", ".join(package.tags.order_by("tag").values_list("tag", flat=True)) or "–"


class PackageTagAdmin(FactsAdmin):
    list_display = ["name", "tag", "package", "tenant", "cell", "moved_by", "moved_at"]
    list_filter = ["cell", "tenant"]
    list_select_related = ["cell", "tenant", "package"]
    search_fields = ["name", "=tag"]
    ordering = ["-moved_at"]
    fields = ["cell", "tenant", "name", "tag", "package", "moved_by", "moved_at"]
