"""Admin pages of kept allocs: allocs that have ended, whose files machines keep until the logs are saved. SREs can
delete a kept alloc when its capacity is needed.
"""

from __future__ import annotations

from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from quota.admin import FactsAdmin, vector_text
from scheduling.admin.actions import row_action
from scheduling.allocs.kept_allocs import kept_release
from scheduling.models import KeptAlloc


class KeptAllocAdmin(FactsAdmin):
    list_display = ["name", "machine", "hold_shown", "savers_shown", "since", "until", "released"]
    list_filter = ["released", "machine__cell"]
    list_select_related = ["machine__cell"]
    search_fields = ["name", "machine__hostname"]
    fields = ["name", "machine", "key", "hold_shown", "savers", "since", "until", "released"]
    actions = ["drop"]

    @display(description=_("capacity in use"))
    def hold_shown(self, kept: KeptAlloc) -> SafeString:
        return vector_text(kept.hold, extra=kept.machine.cell.extra_resources)

    @display(description=_("tasks that save the logs"))
    def savers_shown(self, kept: KeptAlloc) -> str:
        return ", ".join(
            f"{saver['tenant']}/{saver['job']}/{saver['index']}{' ✓' if saver['done'] else ''}" for saver in kept.savers
        )

    drop = row_action(
        "drop",
        label=_("Delete files, even if they are not saved"),
        title=_("Delete the kept files of allocs"),
        warning=_("Files that are not saved yet are lost permanently."),
        service=kept_release,
        row_as="kept",
    )
