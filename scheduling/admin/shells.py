"""The page of shells that people opened in tasks, newest first. It is read-only."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from quota.admin import FactsAdmin
from scheduling.models import ShellSession


class ShellAdmin(FactsAdmin):
    list_display = [
        "asked_at",
        "actor",
        "peer",
        "task_shown",
        "machine",
        "state",
        "closed_at",
        "how",
        "bytes_typed",
        "bytes_printed",
    ]
    list_filter = ["state", "cell"]
    list_select_related = ["job", "machine"]
    search_fields = ["=actor", "=job__name", "=machine__hostname"]
    ordering = ["-asked_at"]
    exclude = ["rows", "cols", "plain"]

    @display(description=_("task"))
    def task_shown(self, shell: ShellSession) -> str:
        return f"{shell.job.name}/{shell.task_index}"
