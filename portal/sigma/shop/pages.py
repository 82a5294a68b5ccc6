"""The shop page. While the user fills in the form, it shows price and availability. A quote and an order follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from portal.sigma.frame.page import page, rendered
from portal.sigma.reads.jobs import jobs_visible
from portal.sigma.reads.market import approval_words, cells_sold, like_this, owners_of, zone_of
from portal.sigma.shop.offer import offer_for
from portal.sigma.shop.own import own_of
from portal.sigma.shop.period import PRESETS
from portal.sigma.shop.sizes import SIZES, size_fields
from portal.sigma.shop.wish import Choices, Form, known_only, quantity_text, wish_read
from quota import clock
from quota.models import Market, PriorityBand, Tenant
from quota.pricing.arithmetic import UNIT
from quota.pricing.market import is_sold
from quota.pricing.price_lists import quote_make
from quota.selectors import tenants_visible
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal, may, require
from quota.vocabulary.resources import NAMES

MOST = 200
# Parts of the form that change with each choice: one error line per field, and the help texts.
_FOLLOWING = ["tenant", "cell", "band", "from", "until", *(size.name for size in SIZES)]
OOB = ",".join([*(f"#error-{name}" for name in _FOLLOWING), "#band-help", "#zone"])
# The fields of the shop's form. Other fields are rejected.
_FIELDS = {"tenant", "cell", "band", "from", "until", "preset", "renew", "like", *(size.name for size in SIZES)}


@never_cache
@page
def shop(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the form with its price (GET), or make a quote, which the next page confirms (POST)."""
    tenants = {row.name: row for row in _tenants(principal)}
    bands = [row for row in PriorityBand.objects.all() if is_sold(row)]
    bands.sort(key=lambda row: (row.name != "production", -row.low))
    now = clock.now()
    choices = Choices(
        tenants=list(tenants),
        cells=cells_sold(principal),
        bands=[row.name for row in bands],
        zones={name: zone_of(row) for name, row in tenants.items()},
        longest_days=dict(Market.objects.values_list("cell", "longest_days")),
        now=now,
    )
    if request.method == "POST":
        return _quote(request, principal, tenants, choices)
    if request.GET.get("fill") and request.GET.get("like"):
        return _filled(request, principal)
    form = wish_read(request.GET.dict(), choices)
    context: dict[str, Any] = {}
    if choices.tenants and choices.cells and choices.bands:
        context["jobs"] = like_this(jobs_visible(principal), form.given["tenant"])
    tenant = tenants.get(form.given["tenant"])
    if form.wish is not None and tenant is not None:
        try:
            offer = offer_for(principal, tenant, form.wish, choices.cells, now=now)
        except Rejected as problem:
            context["problem"] = problem
        else:
            context["offer"] = offer
            context["sees_money"] = may(principal, Action.BILLING_VIEW, tenant=tenant.name)
            context["own"] = own_of(principal, tenant, form.wish.cell, form.wish.band)
            context["approval"] = approval_words(
                tenant, form.wish.cell, form.wish.band, offer.price, orderer=principal.name
            )
            context["owners"] = owners_of(tenant) if offer.missing else []
            form.errors |= offer.short
    return render(request, "sigma/shop/shop.html", _context(form, choices, bands, principal) | context)


def _quote(request: HttpRequest, principal: Principal, tenants: Mapping[str, Tenant], choices: Choices) -> HttpResponse:
    form = wish_read(request.POST.dict(), choices)
    problem: Rejected | None = None
    try:
        known_only(request.POST, _FIELDS | {"csrfmiddlewaretoken", "price"})
        if form.wish is not None:
            tenant = tenants[form.wish.tenant]
            require(principal, Action.QUOTA_BUY, tenant=tenant.name, cell=form.wish.cell)
            made = quote_make(principal=principal, tenant=tenant, **form.wish.goods)
            seen = request.POST.get("price", "")
            asked = {"renew": "1"} if form.wish.renew else {}
            if seen and seen != str(made.price):
                asked["seen"] = seen[:20]
            url = reverse("sigma:quote", kwargs={"number": made.pk})
            return redirect(f"{url}?{urlencode(asked)}" if asked else url)
        problem = Rejected("invalid", _("This cannot be ordered: correct the marked fields."), fields=form.errors)
    except Rejected as rejection:
        problem = rejection
    bands = list(PriorityBand.objects.filter(name__in=choices.bands))
    context = _context(form, choices, bands, principal) | {"problem": problem}
    return rendered(request, "sigma/shop/shop.html", context)


def _filled(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Redirect to the form, filled in with the size of a live job."""
    given = {name: value for name, value in request.GET.items() if name not in ("fill", "like")}
    number = request.GET["like"]
    found = jobs_visible(principal).exclude(state="dead")
    job = found.filter(pk=int(number)).first() if number.isdecimal() and len(number) < 19 else None
    if job is None:
        raise NotFound("job", number[:20])
    sums = dict(zip(NAMES, job.requested, strict=False))
    given |= {name: quantity_text(name, sums[name]) for name in UNIT}
    given |= {"tenant": job.tenant.name, "cell": job.cell.name, "band": job.band}
    return redirect(f"{reverse('sigma:shop')}?{urlencode(given)}")


def _context(form: Form, choices: Choices, bands: list[PriorityBand], principal: Principal) -> dict[str, Any]:
    sizes = size_fields(form.given, form.errors)
    tenant = form.given.get("tenant", "")
    return {
        "form": form,
        "tenants": choices.tenants,
        "cells": choices.cells,
        "bands": bands,
        "band_chosen": next((row for row in bands if row.name == form.given["band"]), None),
        "sizes": sizes,
        "more_open": any(row["more"] and row["text"] not in ("", "0") for row in sizes),
        "presets": PRESETS,
        "zone": choices.zones.get(tenant, ZoneInfo("UTC")).key,
        "oob": OOB,
        "may_buy": bool(tenant) and may(principal, Action.QUOTA_BUY, tenant=tenant, cell=form.given["cell"]),
    }


def _tenants(principal: Principal) -> list[Tenant]:
    """Return the visible tenants. Those for which the principal may buy come first."""
    rows = list(tenants_visible(principal).order_by("name")[:MOST])
    return sorted(rows, key=lambda row: not may(principal, Action.QUOTA_BUY, tenant=row.name))
