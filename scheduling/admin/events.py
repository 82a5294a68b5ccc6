"""The list of journal events, newest first. The list does not show how many events there are.

If the search text is a number, the list starts at the event with this revision.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ChangeList as DjangoChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.paginator import InfinitePaginator
from unfold.views import ChangeList

from quota.admin import FactsAdmin
from scheduling.access.selectors import job_names
from scheduling.core.vocabulary.events import Event as AnyEvent
from scheduling.models import Cell, Event, Job, Machine


class CellFilter(SimpleListFilter):
    """A filter by cell. Its choices are read from the cells, because events have no foreign key to them."""

    title = _("cell")
    parameter_name = "cell_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(pk), name) for pk, name in Cell.objects.values_list("id", "name")[:200]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        value = self.value() or ""
        return queryset.filter(cell_id=int(value)) if value.isdigit() else queryset


# Kinds of which the system writes thousands. The list hides them unless it is filtered by kind.
BULK_KINDS = ("reservations.set", "packages.held")
_ALL = "all"
# Many ended jobs may have the same name. The search uses the newest ones.
MOST_JOBS = 50


class KindFilter(SimpleListFilter):
    """A filter by kind of event. The choices are the kinds that the code defines. If the user chooses no kind, events
    about bulk changes are hidden.
    """

    title = _("kind of event")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        tags = (str(kind.__struct_config__.tag) for kind in AnyEvent.__args__)
        return [(_ALL, _("all kinds, including bulk changes")), *((tag, tag) for tag in sorted(tags))]  # type: ignore[list-item]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        if self.value() == _ALL:
            return queryset
        return queryset.filter(kind=self.value()) if self.value() else queryset.exclude(kind__in=BULK_KINDS)


class EventList(ChangeList):
    """A list of events that shows the names of their cells, jobs and machines. Makes three queries for these names."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        events = list(self.result_list)
        cells = dict(Cell.objects.filter(id__in={e.cell_id for e in events}).values_list("id", "name"))
        jobs = {pk: name for pk, (_, name) in job_names(e.job_id for e in events if e.job_id).items()}
        hosts = dict(Machine.objects.filter(id__in={e.machine_id for e in events}).values_list("id", "hostname"))
        for event in events:
            event.names = (cells.get(event.cell_id), jobs.get(event.job_id), hosts.get(event.machine_id))
        self.result_list = events


class EventAdmin(FactsAdmin):
    list_display = ["place", "when", "kind", "about", "machine_shown", "actor", "request_id", "cause", "data_shown"]
    list_filter = [CellFilter, KindFilter]
    list_display_links = None
    list_per_page = 100
    list_fullwidth = True
    ordering = ["-cell_id", "-revision", "-seq"]
    paginator = InfinitePaginator
    search_fields = ["actor"]
    search_help_text = _("the newest revision to show, or the name of a job, machine or actor")
    sortable_by = ()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[DjangoChangeList]:
        return EventList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Event], search_term: str
    ) -> tuple[QuerySet[Event], bool]:
        term = search_term.strip()
        if term.isdigit() and len(term) < 19:
            return queryset.filter(revision__lte=int(term)), False
        if not term:
            return queryset, False
        jobs = Job.objects.filter(name=term).order_by("-id").values_list("id", flat=True)[:MOST_JOBS]
        machines = Machine.objects.filter(hostname=term).values_list("id", flat=True)
        if ids := list(jobs):
            return queryset.filter(job_id__in=ids), False
        if ids := list(machines):
            return queryset.filter(machine_id__in=ids), False
        return queryset.filter(actor=term), False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> None:
        """Return None, because an event has no page of its own. The list shows all fields of an event."""

    @display(description=_("revision"))
    def place(self, event: Any) -> str:
        return f"{event.names[0] or event.cell_id} {event.revision}.{event.seq}"

    @display(description=_("time"))
    def when(self, event: Event) -> SafeString:
        return format_html('<span class="whitespace-nowrap">{}</span>', f"{event.time:%F %T} UTC")

    @display(description=_("job or task"))
    def about(self, event: Any) -> str:
        if event.job_id is None:
            return "–"
        job = event.names[1] or f"job {event.job_id}"
        return job if event.task_index is None else f"{job}/{event.task_index}"

    @display(description=_("machine"))
    def machine_shown(self, event: Any) -> str:
        return event.names[2] or "–"

    @display(description=_("caused by event"))
    def cause(self, event: Event) -> str:
        if event.caused_by_revision is None:
            return "–"
        return f"{event.caused_by_revision}.{event.caused_by_seq}"

    @display(description=_("data of the event"))
    def data_shown(self, event: Event) -> SafeString:
        text = msgspec.json.encode({k: v for k, v in event.data.items() if k != "kind"}).decode()
        return format_html('<span class="whitespace-nowrap" title="{}">{}</span>', text[:2000], text[:60])
