"""Helpers for the forms of the console that change data: a form that asks for a reason before an action on selected
rows, and a form on a separate page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from unfold.admin import ModelAdmin

from quota.vocabulary.errors import Rejected

# The maximum number of rows for one action.
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
    """Return a page with a form that asks for a reason. When the user has sent the form, call `act(row, reason)` for
    each row, and return None. Django then shows the list again.

    If `act` raises `Rejected` for one row, the other rows are still processed. `action`: the name of the action in
    Django.
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
    """Return a page with a form that asks for a reason. When the user has sent the form, call `act(rows, reason,
    given)` once for all rows, and return None. Django then shows the list again.

    `act` returns the number of changed rows. `more`: a form with further fields; `given`: the values of these fields.
    `action`: the name of the action in Django. If `act` raises `Rejected`, the form is shown again with the error.
    """
    chosen = list(rows[: MOST + 1])
    if len(chosen) > MOST:
        messages.error(request, _("More than %d rows are selected. Select fewer rows.") % MOST)
        return None
    asked = "reason" in request.POST
    form = more(request.POST if asked else None) if more is not None else None
    reason = request.POST.get("reason", "").strip()
    problem = ""
    if reason and (form is None or form.is_valid()):
        try:
            done = act(chosen, reason[:300], form.cleaned_data if form is not None else {})
        except Rejected as rejection:
            problem = rejection.detail
        else:
            if done:
                messages.success(
                    request, _("%(title)s: done for %(done)d selected rows.") % {"title": title, "done": done}
                )
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


def act_by_form(
    page: ModelAdmin,
    request: HttpRequest,
    form_class: type[forms.Form],
    *,
    title: str,
    about: str,
    button: str,
    act: Callable[[dict[str, Any]], str],
    then: str,
) -> HttpResponse:
    """Show a form on a separate page. When the user has sent the form, call `act(given)`, and redirect to the console
    page `then`.

    `given`: the values of the fields. `act` returns a message about the result. If `act` raises `Rejected`, the form is
    shown again with the error.
    """
    form = form_class(request.POST or None)
    problem = ""
    if request.method == "POST" and form.is_valid():
        try:
            messages.success(request, act(form.cleaned_data))
            return redirect(reverse(f"{page.admin_site.name}:{then}"))
        except Rejected as rejection:
            problem = rejection.detail
    context = {
        **page.admin_site.each_context(request),
        "title": title,
        "about": about,
        "form": form,
        "problem": problem,
        "opts": page.opts,
        "button": button,
    }
    return TemplateResponse(request, "console/form.html", context)
