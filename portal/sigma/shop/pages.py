"""The shop's page. The user enters a request for quota, and sees its price and how much quota the cell has left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from portal.sigma.frame.page import page, problem_kept, rendered, whole_number
from portal.sigma.reads.jobs import operated_jobs_visible
from portal.sigma.reads.market import approval_words, cells_sold, like_this, owners_of, zone_of
from portal.sigma.shop.offer import offer_for
from portal.sigma.shop.own_quota import own_of
from portal.sigma.shop.period import PRESETS
from portal.sigma.shop.request_form import Choices, Form, amount_fields, known_only, wish_read
from portal.sigma.shop.resource_labels import LABELS, size_fields
from quota import clock
from quota.models import Market, PriorityBand, Tenant
from quota.pricing.capacity_for_sale import bands_by_name, is_sold
from quota.pricing.price_lists import quote_make
from quota.request_cache import reads_once
from quota.selectors import tenants_visible
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal, may, require
from scheduling.models import Cell
from scheduling.policy import cell_settings
from scheduling.promises.promise_rules import promise_of, sentences

MOST = 200
# The fields of the form that can have an error.
_CHECKED = ("tenant", "cell", "band", "from", "until", *LABELS)
# The parts of the form that HTMX replaces after each choice: the error of each field, and the help texts.
OOB = ",".join([*(f"#error-{name}" for name in _CHECKED), "#band-help", "#zone"])
# The fields of the form when it is sent. Other fields are rejected.
_FIELDS = {"csrfmiddlewaretoken", "price", "preset", "renew", "like", *_CHECKED}


@never_cache
@page
def shop(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the form with the price of the request (GET), or create a quote and redirect to the quote's page (POST)."""
    visible = tenants_visible(principal).order_by("name")[:MOST]
    # The tenants for which the principal may buy quota come first.
    buyable_first = sorted(visible, key=lambda row: not may(principal, Action.QUOTA_BUY, tenant=row.name))
    tenants = {row.name: row for row in buyable_first}
    bands = [row for row in bands_by_name().values() if is_sold(row)]
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
    with reads_once():
        return _shown(request, principal, tenants, choices, bands)


def _shown(
    request: HttpRequest,
    principal: Principal,
    tenants: Mapping[str, Tenant],
    choices: Choices,
    bands: list[PriorityBand],
) -> HttpResponse:
    form = wish_read(request.GET.dict(), choices)
    context: dict[str, Any] = {}
    if choices.tenants and choices.cells and choices.bands:
        context["jobs"] = like_this(operated_jobs_visible(principal), form.given["tenant"])
    tenant = tenants.get(form.given["tenant"])
    if form.wish is not None and tenant is not None:
        wish = form.wish
        with problem_kept(context):
            offer = offer_for(principal, tenant, wish, choices.cells, now=choices.now)
            context |= {
                "offer": offer,
                "sees_money": may(principal, Action.BILLING_VIEW, tenant=tenant.name),
                "promise": _promise(wish.cell) if bands_by_name()[wish.band].prod else [],
                "own": own_of(principal, tenant, wish.cell, wish.band),
                "approval": approval_words(tenant, wish.cell, wish.band, offer.price, orderer=principal.name),
                "owners": owners_of(tenant) if offer.missing else [],
            }
            form.errors |= offer.short
    return render(request, "sigma/shop/shop.html", _context(form, choices, bands, principal) | context)


def _promise(cell: str) -> list[str]:
    """Return the promise of a cell as sentences; empty if it promises nothing."""
    stored = Cell.operated.filter(name=cell).values_list("settings", flat=True).first()
    return sentences(promise_of(cell_settings.load(stored or {})))


def _quote(request: HttpRequest, principal: Principal, tenants: Mapping[str, Tenant], choices: Choices) -> HttpResponse:
    form = wish_read(request.POST.dict(), choices)
    context: dict[str, Any] = {}
    with problem_kept(context):
        known_only(request.POST, _FIELDS)
        if form.wish is None:
            raise Rejected("invalid", _("Nothing was ordered: correct the marked fields."), fields=form.errors)
        tenant = tenants[form.wish.tenant]
        require(principal, Action.QUOTA_BUY, tenant=tenant.name, cell=form.wish.cell)
        made = quote_make(principal=principal, tenant=tenant, **form.wish.goods)
        asked = {"renew": "1"} if form.wish.renew else {}
        if request.POST.get("price", "") not in ("", str(made.price)):
            asked["seen"] = request.POST["price"][:20]
        return redirect(reverse("sigma:quote", args=[made.pk], query=asked))
    bands = list(PriorityBand.objects.filter(name__in=choices.bands))
    return rendered(request, "sigma/shop/shop.html", _context(form, choices, bands, principal) | context)


def _filled(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Redirect to the form, filled in with the amounts that a live job requests (`?like=`, the id of the job)."""
    given = {name: value for name, value in request.GET.items() if name not in ("fill", "like")}
    live = operated_jobs_visible(principal).exclude(state="dead")
    job = live.filter(pk=whole_number(request.GET["like"]) or 0).first()
    if job is None:
        raise NotFound("job", request.GET["like"][:20])
    given |= {"tenant": job.tenant.name, "cell": job.cell.name, "band": job.band, **amount_fields(job.requested)}
    return redirect(reverse("sigma:shop", query=given))


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
