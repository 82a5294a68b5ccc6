"""Actions on chosen rows that ask for a reason first, and tell what became of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from unfold.admin import ModelAdmin

from quota.vocabulary.errors import Rejected

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

    A row that is rejected hinders no other. `action`: the name the action is registered by.
    """

    def each(chosen: list[Any], reason: str, _given: dict[str, Any]) -> int:
        done = 0
        for row in chosen:
            try:
                act(row, reason)
            except Rejected as problem:
                messages.error(request, f"{row}: {problem.detail}")
            else:
                done += 1
        return done

    return act_together(page, request, rows, action=action, title=title, warning=warning, act=each)


def act_together(
    page: ModelAdmin,
    request: HttpRequest,
    rows: QuerySet[Any],
    *,
    action: str,
    title: str,
    warning: str,
    act: Callable[[list[Any], str, dict[str, Any]], int],
    more: type[forms.Form] | None = None,
) -> HttpResponse | None:
    """Do as `act_with_reason` for all rows at once: `act(rows, reason, given)` returns for how many it is done.

    `more`: what else the form asks for. A rejection is shown above the form, with what was given, to be put right.
    """
    chosen = list(rows[: MOST + 1])
    if len(chosen) > MOST:
        messages.error(request, _("More than %d are chosen; choose fewer at a time.") % MOST)
        return None
    asked = "reason" in request.POST
    form = more(request.POST if asked else None) if more is not None else None
    reason = request.POST.get("reason", "").strip()
    problem = ""
    if reason and (form is None or form.is_valid()):
        try:
            done = act(chosen, reason[:300], form.cleaned_data if form is not None else {})
        except Rejected as refusal:
            problem = refusal.detail
        else:
            if done:
                messages.success(request, _("%(title)s: done for %(done)d.") % {"title": title, "done": done})
            return None
    context = {
        **page.admin_site.each_context(request),
        "title": title,
        "warning": warning,
        "rows": chosen,
        "action": action,
        "checkbox": ACTION_CHECKBOX_NAME,
        "opts": page.model._meta,
        "missing": asked and not reason,
        "reason": reason,
        "form": form,
        "problem": problem,
    }
    return TemplateResponse(request, "console/act.html", context)
