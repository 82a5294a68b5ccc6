"""The console's page about priority bands. Before a change is made, the page shows what the change would do."""

from __future__ import annotations

from typing import Any

from django.db.models import Model
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.formats import date_format
from django.utils.html import strip_tags
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.decorators import display

from quota.admin.base import ServiceForm, principal_of, vector_text
from quota.admin.previewed import Preview, PreviewedAdmin, Table
from quota.admission.band_changes import band_set
from quota.models import PriorityBand
from quota.pricing.band_preview import band_preview
from quota.vocabulary.bands import Band
from quota.vocabulary.resources import NAMES, format_number

MOST_NAMED = 20  # orders, grants and tenants in one line


class BandForm(ServiceForm):
    class Meta:
        help_texts = {
            "price_milli": gettext_lazy("The price at this band, in thousandths of the base price."),
            "oversell_milli": gettext_lazy(
                "The share of a cell's capacity that is sold at this band, in thousandths."
                " At a prod band, at most 1000."
            ),
        }


class BandAdmin(PreviewedAdmin):
    form = BandForm
    list_display = ["name", "low", "high", "prod", "preempts_within", "price_shown", "oversell_shown"]
    fields = ["name", "low", "high", "prod", "preempts_within", "price_milli", "oversell_milli"]
    fields_fixed = ("name",)

    @display(description=gettext_lazy("price factor"))
    def price_shown(self, band: PriorityBand) -> str:
        return format_number(band.price_milli / 1000)

    @display(description=gettext_lazy("over-selling factor"))
    def oversell_shown(self, band: PriorityBand) -> str:
        return format_number(band.oversell_milli / 1000)

    def make(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        return band_set(principal=principal_of(request), **_wanted(given))

    def preview(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Preview:
        detail = band_preview(principal=principal_of(request), **_wanted(given))
        over = [(cell["cell"], one) for cell in detail["cells"] for one in cell["over"]]
        warnings = []
        if over:
            warnings.append(
                _("More quota is already sold than the change allows. Sold quota stays valid, but no more can be sold.")
            )
        if detail["leaving"]:
            warnings.append(
                _("The band loses some priorities. Live jobs at these priorities will no longer use its quota.")
            )
        return Preview(
            title=_("Change band %s?") % detail["band"],
            notes=[] if detail["changes"] else [_("Nothing changes.")],
            warnings=warnings,
            tables=[
                Table(
                    _("Changes"),
                    [_("field"), _("value now"), _("new value")],
                    [(_field(name), *_pair(pair)) for name, pair in detail["changes"].items()],
                    _("Nothing changes."),
                ),
                Table(
                    _("Highest amount of sold quota, at any time from now on"),
                    [_("cell"), _("sold at this band"), _("current limit"), _("new limit")],
                    [
                        (
                            cell["cell"],
                            _vector(cell["sold"]),
                            _vector(cell["sellable_before"]),
                            _vector(cell["sellable_after"]),
                        )
                        for cell in detail["cells"]
                    ],
                    _("No cell has capacity to sell."),
                ),
                Table(
                    _("Quota beyond the new limit"),
                    [
                        _("cell"),
                        _("begins at"),
                        _("ends at"),
                        _("sold above the limit"),
                        _("orders"),
                        _("grants"),
                        _("tenants"),
                    ],
                    [
                        (
                            cell,
                            _moment(one["begins_at"]),
                            _moment(one["ends_at"]),
                            _vector(one["short"]),
                            _named(one["orders"]),
                            _named(one["grants"]),
                            _named(one["tenants"]),
                        )
                        for cell, one in over
                    ],
                    _("All sold quota is within the new limit."),
                ),
                *(
                    [
                        Table(
                            _("Live jobs at this band"),
                            [_("cell"), _("tenant"), _("quota in use")],
                            [(use["cell"], use["tenant"], _vector(use["in_use"])) for use in detail["leaving"]],
                        )
                    ]
                    if detail["leaving"]
                    else []
                ),
            ],
        )


def _wanted(given: dict[str, Any]) -> dict[str, Any]:
    rules = {name: given[name] for name in ("name", "low", "high", "prod", "preempts_within")}
    return {"band": Band(**rules), "price_milli": given["price_milli"], "oversell_milli": given["oversell_milli"]}


def _field(name: str) -> str:
    return str(PriorityBand._meta.get_field(name).verbose_name)  # type: ignore[union-attr]


def _pair(pair: list[Any]) -> tuple[str, str]:
    before, after = ("–" if value is None else str(value) for value in pair)
    return before, after


def _vector(named: dict[str, int]) -> str:
    """Return quantities by resource as one text, such as `500 cores, 2 TiB ram`. Narrow screens may break the text into
    several lines.
    """
    return strip_tags(vector_text([named[name] for name in NAMES]))


def _moment(text: str | None) -> str:
    if text is None:
        return _("no end")
    moment = parse_datetime(text)
    assert moment is not None
    return date_format(timezone.localtime(moment), "DATETIME_FORMAT")


def _named(ids: list[Any]) -> str:
    shown = ", ".join(str(one) for one in ids[:MOST_NAMED])
    more = len(ids) - MOST_NAMED
    return (_("%(shown)s and %(more)d more") % {"shown": shown, "more": more}) if more > 0 else shown or "–"


PAGES = {PriorityBand: BandAdmin}
