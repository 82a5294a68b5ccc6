"""Actions of admin pages. They ask for a reason, and then call a service for each chosen row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from unfold.admin import ModelAdmin

from quota.admin import principal_of
from quota.admin.reason_forms import act_with_reason

Action = Callable[[ModelAdmin, HttpRequest, QuerySet[Any]], HttpResponse | None]


def row_action(
    name: str,
    *,
    label: str | Promise,
    title: str | Promise,
    warning: str | Promise,
    service: Callable[..., object],
    row_as: str,
) -> Action:
    """Return the action `name` of an admin page. It calls `service(principal=…, reason=…)` for each chosen row.

    `row_as`: the name of the argument in which the service receives the row.
    """

    @admin.action(description=label)  # type: ignore[arg-type]
    def action(page: ModelAdmin, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        principal = principal_of(request)
        return act_with_reason(
            page,
            request,
            rows,
            action=name,
            title=str(title),
            warning=str(warning),
            act=lambda row, reason: service(principal=principal, reason=reason, **{row_as: row}),
        )

    return action
