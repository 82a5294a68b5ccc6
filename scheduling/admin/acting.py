"""Actions on chosen rows that ask for a reason first, and tell what became of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from unfold.admin import ModelAdmin

from quota.errors import Refused

# What one form may act on: a selection, not a cell.
MOST = 1_000


def act_with_reason(
    page: ModelAdmin,
    request: HttpRequest,
    rows: QuerySet[Any],
    *,
    action: str,
    title: str,
    warning: str,
    act: Callable[[Model, str], object],
) -> HttpResponse | None:
    """First answer with a form that asks why; then call `act(row, reason)` for each row.

    A row that is refused hinders no other. `action`: the name the action is registered by.
    """
    chosen = list(rows[: MOST + 1])
    if len(chosen) > MOST:
        messages.error(request, _("More than %d are chosen; choose fewer at a time.") % MOST)
        return None
    reason = request.POST.get("reason", "").strip()
    if "reason" not in request.POST or not reason:
        context = {
            **page.admin_site.each_context(request),
            "title": title,
            "warning": warning,
            "rows": chosen,
            "action": action,
            "checkbox": ACTION_CHECKBOX_NAME,
            "opts": page.model._meta,
            "missing": "reason" in request.POST,
        }
        return TemplateResponse(request, "console/act.html", context)
    done = 0
    for row in chosen:
        try:
            act(row, reason[:300])
        except Refused as problem:
            messages.error(request, f"{row}: {problem.detail}")
        else:
            done += 1
    if done:
        messages.success(request, _("%(title)s: done for %(done)d.") % {"title": title, "done": done})
    return None
