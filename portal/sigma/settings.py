"""The page of what a person prefers: the time zone of times on pages, and whether the first steps are shown."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from portal.sigma.frame.page import page, problem_kept, rendered
from portal.sigma.frame.time_zone import zone_for
from quota import clock
from quota.personal.preferences import HIDDEN, preferences_of, time_zone_set
from quota.tenancy.tenants import time_zones
from quota.vocabulary.permissions import Principal


@never_cache
@page
def settings(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the preferences (GET), or store the time zone (POST). An empty time zone stands for that of the browser."""
    stored = preferences_of(principal)
    context: dict[str, Any] = {
        "chosen": request.POST.get("time_zone", stored.time_zone).strip(),
        "in_force": zone_for(request, principal),
        "zones": time_zones(),
        "now": clock.now(),
        "hidden": stored.first_steps == HIDDEN,
    }
    if request.method == "POST":
        with problem_kept(context):
            time_zone_set(principal=principal, time_zone=context["chosen"])
            messages.success(request, _("Your settings were saved."))
            return redirect("sigma:settings")
    return rendered(request, "sigma/settings.html", context)
