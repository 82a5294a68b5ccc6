"""Requests to the shop, read from the fields of the shop's form, with an error for each wrong field."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from portal.sigma.frame.page import given_in
from portal.sigma.shop.period import PRESETS, DayError, QuotaPeriod, day_read, instants, preset_last, preset_of
from portal.sigma.shop.resource_labels import SIZES
from quota.pricing.price_formula import UNIT
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import NAMES, QuantityError, Vector, format_input, parse_quantity

# The amounts on the first visit: one small service, so that the page shows a price.
FIRST_SIZE = {"cpu": "1", "ram": "4Gi", "disk": "10Gi"}
FIRST_PERIOD = "month"
_TOO_MUCH = re.compile(r"[0-9]{7,}(\.[0-9]+)?[a-zA-Z]*\Z")


@dataclass(frozen=True, slots=True)
class Choices:
    """The values that the user may choose in the shop's form. The first value of each list is the default.

    `zones`: each tenant's time zone, by tenant name. `longest_days`: the length of the longest allowed period, by cell
    name.
    """

    tenants: Sequence[str]
    cells: Sequence[str]
    bands: Sequence[str]
    zones: Mapping[str, ZoneInfo]
    longest_days: Mapping[str, int]
    now: dt.datetime


@dataclass(frozen=True, slots=True)
class Wish:
    """A valid request for quota. The shop can compute its price. The period ends just before `ends_at`."""

    tenant: str
    cell: str
    band: str
    amounts: Vector
    period: QuotaPeriod
    starts_at: dt.datetime
    ends_at: dt.datetime
    zone: ZoneInfo
    renew: bool = False

    @property
    def goods(self) -> dict[str, Any]:
        """Return the cell, band, amounts, start and end of this request, as keyword arguments."""
        return {name: getattr(self, name) for name in ("cell", "band", "amounts", "starts_at", "ends_at")}


@dataclass(slots=True)
class Form:
    """The shop's form, as the user filled it in. `given`: the text of each field; `errors`: the error of each wrong
    field.

    `wish`: the request, or None if a field is wrong. `preset`: the key of `PRESETS` that is as long as the period, or
    "" if there is none.
    """

    given: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)
    wish: Wish | None = None
    preset: str = ""
    today: dt.date | None = None


def wish_read(asked: Mapping[str, str], choices: Choices) -> Form:
    """Read the fields of the shop's form: `asked` has their texts by name. A missing field gets its default value."""
    form = Form(given={})
    tenant = _chosen(form, "tenant", asked, choices.tenants, _("this is not one of your tenants; choose a tenant"))
    cell = _chosen(form, "cell", asked, choices.cells, _("there is no such cell; choose a cell"))
    band = _chosen(form, "band", asked, choices.bands, _("there is no such band; choose a band"))
    sized = any(name in asked for name in UNIT)
    form.given |= given_in(asked if sized else FIRST_SIZE, *UNIT)
    amounts = amounts_read(form.given, form.errors)
    zone = choices.zones.get(tenant, ZoneInfo("UTC"))
    form.today = choices.now.astimezone(zone).date()
    period = _period(form, asked, zone, longest=choices.longest_days.get(cell, 366))
    renew = asked.get("renew", "") in ("1", "on", "true")
    form.given["renew"] = "1" if renew else ""
    if period is not None and not form.errors and amounts is not None:
        starts_at, ends_at = instants(period, zone, now=choices.now)
        form.wish = Wish(tenant, cell, band, amounts, period, starts_at, ends_at, zone, renew)
    return form


def known_only(given: Mapping[str, str], known: set[str]) -> None:
    """Raise `Rejected` if a field is not one of `known`. Such a field does not come from the shop's page."""
    other = sorted(set(given) - known)
    if other:
        detail = _("the form does not have this field; reload the page")
        raise Rejected(
            "tampered",
            _("The form does not have the field %s. Nothing was ordered. Reload the page.") % ", ".join(other)[:200],
            fields={name[:60]: detail for name in other[:20]},
        )


def amounts_read(given: Mapping[str, str], errors: dict[str, str]) -> Vector | None:
    """Return the requested amounts. If a field is wrong or all are 0, add an error to `errors` and return None."""
    hints = {size.name: size.hint for size in SIZES}
    vector = []
    for name in NAMES:
        if name not in UNIT:
            vector.append(0)
            continue
        text = given.get(name, "")
        try:
            vector.append(parse_quantity(name, text or "0"))
        except QuantityError:
            if _TOO_MUCH.match(text):
                errors[name] = _("this is more than any cell has; enter a smaller amount")
            else:
                example = {"given": text[:20], "hint": hints[name]}
                errors[name] = _("%(given)s is not an amount; enter an amount such as %(hint)s") % example
    if len(vector) < len(NAMES):
        return None
    if not any(vector):
        errors["cpu"] = _("all amounts are 0; enter an amount of at least one resource")
        return None
    return tuple(vector)


def fields_of(wish: Wish) -> dict[str, str]:
    """Return the texts that the shop's form shows for the request `wish`. The keys are the names of the fields."""
    fields = {"tenant": wish.tenant, "cell": wish.cell, "band": wish.band, **amount_fields(wish.amounts)}
    fields |= {"from": wish.period.first.isoformat(), "until": wish.period.last.isoformat()}
    return {**fields, "renew": "1"} if wish.renew else fields


def amount_fields(amounts: Sequence[int]) -> dict[str, str]:
    """Return the texts that the shop's form shows for these amounts, such as `500m` and `16Gi`, by field name."""
    return {name: format_input(name, amounts[index]) for index, name in enumerate(NAMES) if name in UNIT}


def _chosen(form: Form, name: str, asked: Mapping[str, str], known: Sequence[str], wrong: str) -> str:
    value = asked.get(name) or (known[0] if known else "")
    form.given[name] = value
    if value not in known:
        form.errors[name] = f"{value[:63]}: {wrong}" if value else wrong
    return value


def _period(form: Form, asked: Mapping[str, str], zone: ZoneInfo, *, longest: int) -> QuotaPeriod | None:
    assert form.today is not None
    preset = asked.get("preset", "")
    if preset not in PRESETS:
        preset = "" if asked.get("until") else FIRST_PERIOD
    form.given |= given_in(asked, "from", "until")
    form.given["from"] = form.given["from"] or form.today.isoformat()
    first = _day(form, "from", zone)
    if first is None:
        return None
    if first < form.today:
        form.errors["from"] = _("%(day)s is in the past: today is %(today)s in %(zone)s; choose today or later") % {
            "day": first,
            "today": form.today,
            "zone": zone.key,
        }
        return None
    if preset:
        form.given["until"] = preset_last(preset, first).isoformat()
    last = _day(form, "until", zone)
    if last is None:
        return None
    period = QuotaPeriod(first, last)
    form.preset = preset_of(period)
    if last < first:
        days = {"last": last, "first": first}
        form.errors["until"] = _("%(last)s is before the first day, %(first)s; choose a later day") % days
    elif period.days > longest:
        form.errors["until"] = _(
            "the period has %(days)d days, and this cell sells at most %(longest)d days;"
            " turn renewal on to keep the quota longer"
        ) % {"days": period.days, "longest": longest}
    return period


def _day(form: Form, name: str, zone: ZoneInfo) -> dt.date | None:
    try:
        day = day_read(form.given[name], zone, ends=name == "until")
    except DayError as error:
        form.errors[name] = str(error)
        return None
    form.given[name] = day.isoformat()
    return day
