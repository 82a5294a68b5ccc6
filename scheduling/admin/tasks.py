"""Admin pages of tasks, of crashes, of departures (tasks that left a machine), and of how much of their notice period
tasks received. Lists of tasks show no total number, because counting is slow.
"""

from __future__ import annotations

from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.paginator import InfinitePaginator

from quota.admin import FactsAdmin, vector_text
from scheduling.access.selectors import alloc_names
from scheduling.admin.filters import OutcomeFilter
from scheduling.models import CrashedPair, Departure, Task


class TaskAdmin(FactsAdmin):
    list_display = [
        "name_shown",
        "cell",
        "state",
        "phase",
        "health",
        "up",
        "machine",
        "ports",
        "incarnation",
        "spec_version",
        "restarts",
        "evictions",
        "outcome",
        "since",
    ]
    list_filter = ["state", "phase", "health", "cell", OutcomeFilter]
    list_select_related = ["cell", "job", "machine"]
    search_fields = ["=job__name", "=machine__hostname"]
    ordering = ["-id"]
    paginator = InfinitePaginator
    exclude = ["alloc", "limit", "reservation"]
    readonly_fields = ["alloc_shown", "limit_shown", "reservation_shown"]

    @display(description=_("task"), ordering="id")
    def name_shown(self, task: Task) -> str:
        return f"{task.job.name}/{task.index}"

    @display(description=_("inside alloc"))
    def alloc_shown(self, task: Task) -> str:
        return alloc_names([task]).get(task.alloc_id, "–")  # type: ignore[arg-type]

    @display(description=_("limit"))
    def limit_shown(self, task: Task) -> SafeString:
        return vector_text(task.limit, extra=task.cell.extra_resources)

    @display(description=_("reservation"))
    def reservation_shown(self, task: Task) -> SafeString:
        return vector_text(task.reservation, extra=task.cell.extra_resources)


class DepartureAdmin(FactsAdmin):
    list_display = ["task_shown", "incarnation", "machine", "cause", "ports", "since"]
    list_select_related = ["task__job", "machine"]
    list_filter = ["cause"]
    search_fields = ["=task__job__name", "=machine__hostname"]
    ordering = ["-since"]
    paginator = InfinitePaginator
    fields = ["task_shown", "incarnation", "machine", "cause", "ports", "since"]

    @display(description=_("task"))
    def task_shown(self, departure: Departure) -> str:
        return f"{departure.task.job.name}/{departure.task.index}"


class CrashedPairAdmin(FactsAdmin):
    list_display = ["task_shown", "machine", "at"]
    list_select_related = ["task__job", "machine"]
    ordering = ["-at"]
    paginator = InfinitePaginator
    fields = ["task_shown", "machine", "at"]

    @display(description=_("task"))
    def task_shown(self, pair: CrashedPair) -> str:
        return f"{pair.task.job.name}/{pair.task.index}"


class NoticeCountAdmin(FactsAdmin):
    """The page that counts the tasks that left their machines, by how much of their notice period they received. This
    is the time between SIGTERM and SIGKILL (§2.3).
    """

    list_display = ["day", "cell", "cause", "delivered", "number"]
    list_filter = ["cell", "cause", "delivered"]
    list_select_related = ["cell"]
    date_hierarchy = "day"
