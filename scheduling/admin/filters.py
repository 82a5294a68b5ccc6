"""Filters for lists on admin pages. The choices come from the code, because a query for the values would read the whole
table.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from quota.models import PriorityBand

OUTCOMES = ("finished", "failed", "killed")


class OutcomeFilter(SimpleListFilter):
    """A filter by the outcome of jobs or tasks that ended."""

    title = _("outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(outcome, outcome) for outcome in OUTCOMES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(outcome=self.value()) if self.value() else queryset


class QuarantineFilter(SimpleListFilter):
    """A filter of machines: those that run tasks which this database does not contain."""

    title = _("tasks in quarantine")
    parameter_name = "quarantine"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", str(_("yes")))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.exclude(quarantined=[]) if self.value() == "yes" else queryset


class BandFilter(SimpleListFilter):
    """A filter by priority band."""

    title = _("priority band")
    parameter_name = "band"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in PriorityBand.objects.order_by("-low").values_list("name", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(band=self.value()) if self.value() else queryset
