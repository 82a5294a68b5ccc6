"""Pages of kept allocs on machines. SREs can delete them when their capacity is needed."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.decorators import display

from quota.admin import FactsAdmin, principal_of, vector_text
from quota.admin.acting import act_with_reason
from scheduling.allocs.kept_allocs import kept_release
from scheduling.models import KeptAlloc


class KeptAllocAdmin(FactsAdmin):
    list_display = ["name", "machine", "hold_shown", "savers_shown", "since", "until", "released"]
    list_filter = ["released", "machine__cell"]
    list_select_related = ["machine__cell"]
    search_fields = ["name", "machine__hostname"]
    fields = ["name", "machine", "key", "hold_shown", "savers", "since", "until", "released"]
    actions = ["drop"]

    @display(description=gettext_lazy("holds"))
    def hold_shown(self, kept: KeptAlloc) -> SafeString:
        return vector_text(kept.hold, extra=kept.machine.cell.extra_resources)

    @display(description=gettext_lazy("log savers"))
    def savers_shown(self, kept: KeptAlloc) -> str:
        return ", ".join(
            f"{saver['tenant']}/{saver['job']}/{saver['index']}{' ✓' if saver['done'] else ''}" for saver in kept.savers
        )

    @admin.action(description=gettext_lazy("Delete, even if not saved"))
    def drop(self, request: HttpRequest, rows: QuerySet[KeptAlloc]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            self,
            request,
            rows,
            action="drop",
            title=_("Delete the kept files of allocs"),
            warning=_("Files that are not saved yet are lost permanently."),
            act=lambda row, reason: kept_release(principal=principal, kept=row, reason=reason),  # type: ignore[arg-type]
        )
