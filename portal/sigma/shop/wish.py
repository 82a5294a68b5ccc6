"""A request to the shop, read from the fields of its form, with an error per wrong field. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from portal.sigma.shop.period import PRESETS, DayError, QuotaPeriod, day_read, instants, preset_last, preset_of
from portal.sigma.shop.sizes import SIZES
from quota.pricing.arithmetic import UNIT
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import NAMES, QuantityError, Vector, parse_quantity

# The defaults of the first visit, one small service, so that the page shows a price.
FIRST_SIZE = {"cpu": "1", "ram": "4Gi", "disk": "10Gi"}
FIRST_PERIOD = "month"
_TOO_MUCH = re.compile(r"[0-9]{7,}(\.[0-9]+)?[a-zA-Z]*\Z")


@dataclass(frozen=True, slots=True)
class Choices:
    """The valid choices. The first of each is the default. `longest_days`: the longest period by cell name."""

    tenants: Sequence[str]
    cells: Sequence[str]
    bands: Sequence[str]
    zones: Mapping[str, ZoneInfo]
    longest_days: Mapping[str, int]
    now: dt.datetime


@dataclass(frozen=True, slots=True)
class Wish:
    """A valid request, which can be priced and ordered. Instants in UTC, end excluded."""

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
        """Return what is bought, as arguments for a quote."""
        return {name: getattr(self, name) for name in ("cell", "band", "amounts", "starts_at", "ends_at")}


@dataclass(slots=True)
class Form:
    """The form. `given`: the text of each field; `errors`: the error of each field; `wish`: None if any error."""

    given: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)
    wish: Wish | None = None
    preset: str = ""
    today: dt.date | None = None


def wish_read(asked: Mapping[str, str], choices: Choices) -> Form:
    """Read the fields tenant, cell, band, from, until (or preset), renew, and one per resource, with defaults."""
    form = Form(given={})
    tenant = _chosen(form, "tenant", asked, choices.tenants, _("not one of your tenants"))
    cell = _chosen(form, "cell", asked, choices.cells, _("no such cell"))
    band = _chosen(form, "band", asked, choices.bands, _("no such band"))
    amounts = _amounts(form, asked)
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
    """Raise `Rejected` if a field is unknown: the page did not produce such a form."""
    other = sorted(set(given) - known)
    if other:
        detail = _("the form has no such field")
        raise Rejected(
            "tampered",
            _("%s: the form has no such field. Nothing was ordered.") % ", ".join(other)[:200],
            fields={name[:60]: detail for name in other[:20]},
        )


def amounts_read(given: Mapping[str, str], errors: dict[str, str]) -> Vector | None:
    """Return the size fields as a vector. If one is wrong, add to `errors` and return None."""
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
            errors[name] = _("%(given)s is not a quantity; write one such as %(hint)s") % {
                "given": text[:20],
                "hint": hints[name],
            }
            if _TOO_MUCH.match(text):
                errors[name] = _("this is more than any cell has")
    if len(vector) < len(NAMES):
        return None
    if not any(vector):
        errors["cpu"] = _("no amount is given; enter a number of cores or of another resource")
        return None
    return tuple(vector)


def quantity_text(name: str, value: int) -> str:
    """Return a quantity in the notation of job files and the form: `quantity_text("ram", 2**34)` is `16Gi`."""
    if name in ("cpu", "accelerators"):
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    if name in ("ram", "disk", "disk_bandwidth"):
        for suffix, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if value and value % size == 0:
                return f"{value // size}{suffix}"
    return str(value)


def fields_of(wish: Wish, **changes: object) -> dict[str, str]:
    """Return the form's fields for this wish, with `changes`; for links."""
    amounts = changes.pop("amounts", wish.amounts)
    period = changes.pop("period", wish.period)
    assert isinstance(amounts, tuple)
    assert isinstance(period, QuotaPeriod)
    fields = {"tenant": wish.tenant, "cell": wish.cell, "band": wish.band}
    fields |= {name: quantity_text(name, value) for name, value in zip(NAMES, amounts, strict=False) if name in UNIT}
    fields |= {"from": period.first.isoformat(), "until": period.last.isoformat()}
    if wish.renew:
        fields["renew"] = "1"
    return fields | {name: str(value) for name, value in changes.items()}


def _chosen(form: Form, name: str, asked: Mapping[str, str], known: Sequence[str], wrong: str) -> str:
    value = asked.get(name) or (known[0] if known else "")
    form.given[name] = value
    if value not in known:
        form.errors[name] = f"{value[:63]}: {wrong}" if value else wrong
    return value


def _amounts(form: Form, asked: Mapping[str, str]) -> Vector | None:
    sized = any(name in asked for name in UNIT)
    form.given |= {name: asked.get(name, "").strip() if sized else FIRST_SIZE.get(name, "") for name in UNIT}
    return amounts_read(form.given, form.errors)


def _period(form: Form, asked: Mapping[str, str], zone: ZoneInfo, *, longest: int) -> QuotaPeriod | None:
    assert form.today is not None
    preset = asked.get("preset", "")
    if preset not in PRESETS:
        preset = "" if asked.get("until") else FIRST_PERIOD
    form.given["from"] = asked.get("from", "").strip() or form.today.isoformat()
    form.given["until"] = asked.get("until", "").strip()
    first = _day(form, "from", zone)
    if first is None:
        return None
    if first < form.today:
        form.errors["from"] = _("%(day)s is in the past; today is %(today)s in %(zone)s") % {
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
        form.errors["until"] = _("%(last)s is before the first day, %(first)s") % {"last": last, "first": first}
    elif period.days > longest:
        form.errors["until"] = _(
            "the period has %(days)d days; this cell sells at most %(longest)d."
            " Switch renewal on to keep the quota longer"
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
