"""The console's pages about price lists and quotes. A price list never changes; new prices are a new version."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, cast

from django import forms
from django.db.models import Model
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.decorators import display
from unfold.widgets import (
    UnfoldAdminSelectWidget,
    UnfoldAdminSplitDateTimeWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from quota import clock
from quota.admin.amounts import AmountField, amount_column
from quota.admin.base import CreateOnlyAdmin, FactsAdmin, ServiceForm, principal_of
from quota.admin.previewed import Preview, PreviewedAdmin, Table
from quota.models import CellCapacity, PriceList, Quote
from quota.pricing.price_formula import UNIT
from quota.pricing.price_lists import price_list_at, price_list_set
from quota.pricing.what_if import what_if
from quota.vocabulary import money
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import NAMES, describe, format_number

UNITS = {
    "cpu": gettext_lazy("per core and hour"),
    "ram": gettext_lazy("per GiB of RAM and hour"),
    "disk": gettext_lazy("per GiB of disk and hour"),
    "disk_bandwidth": gettext_lazy("per GiB/s of disk bandwidth and hour"),
    "accelerators": gettext_lazy("per accelerator and hour"),
}
MOST_TENANTS = 50


class PriceListForm(ServiceForm):
    """The form of a price list. Prices are in credits. The scarcity curve makes quota more expensive when more of it is
    sold. Each of its lines has the sold percentage and the factor of the price.
    """

    cell = forms.ChoiceField(label=gettext_lazy("cell"), widget=UnfoldAdminSelectWidget())
    curve_lines = forms.CharField(
        label=gettext_lazy("price factors by sold share"),
        required=False,
        widget=UnfoldAdminTextareaWidget(),
        help_text=gettext_lazy(
            "Each line has a percentage of sold quota and the price factor at this percentage, such as “80 1.3”."
        ),
    )
    valid_from = forms.SplitDateTimeField(
        label=gettext_lazy("valid from"),
        required=False,
        widget=UnfoldAdminSplitDateTimeWidget(),
        help_text=gettext_lazy("If empty, the prices are valid from now on."),
    )
    note = forms.CharField(
        label=gettext_lazy("note"), required=False, max_length=200, widget=UnfoldAdminTextInputWidget()
    )

    class Meta:
        model = PriceList
        fields = ["note"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cells = CellCapacity.objects.order_by("cell").values_list("cell", flat=True)
        self.fields["cell"].choices = [(name, name) for name in cells]  # type: ignore[attr-defined]

    def clean_curve_lines(self) -> list[list[int]]:
        lines = enumerate(self.cleaned_data["curve_lines"].splitlines(), start=1)
        return [_point(number, line) for number, line in lines if line.strip()]

    def show_rejection(self, problem: Rejected) -> None:
        """Show each error of `problem` next to the form field to which it belongs.

        For example, the error `base.cpu` belongs to the field `base_cpu`, and `curve.1` to `curve_lines`.
        """
        fields = {
            "curve_lines" if name.startswith("curve") else name.replace(".", "_"): what
            for name, what in problem.fields.items()
        }
        super().show_rejection(Rejected(problem.code, problem.detail, fields=fields))


_PRICES = {
    f"{kind}_{name}": AmountField(label=unit, required=False, help_text="")
    for kind in ("base", "usage")
    for name, unit in UNITS.items()
}
_PRICE_LIST = ("cell", "version", "base_shown", "usage_shown", "curve_shown", "valid_from", "note", "created_by")


class PriceListAdmin(CreateOnlyAdmin, PreviewedAdmin):
    form = cast("type[ServiceForm]", type("PricesForm", (PriceListForm,), _PRICES))
    list_display = _PRICE_LIST
    list_filter = ["cell"]
    ordering = ["cell", "-version"]
    fieldsets = [
        (None, {"fields": ["cell", "valid_from", "note"]}),
        (gettext_lazy("Prices of quota, in credits"), {"fields": [f"base_{name}" for name in UNIT]}),
        (
            gettext_lazy("Prices of usage, in credits (if empty, usage is not charged)"),
            {"fields": [f"usage_{name}" for name in UNIT]},
        ),
        (gettext_lazy("Price factors by sold share"), {"fields": ["curve_lines"]}),
    ]
    fields_shown = (*_PRICE_LIST, "created_at")

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        prices = {
            kind: {name: price for name in UNITS if (price := given.pop(f"{kind}_{name}")) is not None}
            for kind in ("base", "usage")
        }
        curve = given.pop("curve_lines")
        return super().perform(request, {**given, **prices, "curve": curve}, row)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Return the current prices of a cell as the first values of the form.

        The query parameter `cell` names the cell; by default it is the first cell.
        """
        cells = list(CellCapacity.objects.order_by("cell").values_list("cell", flat=True))
        if not cells:
            return {}
        asked = request.GET.get("cell", "")
        cell = asked if asked in cells else cells[0]
        now = price_list_at(cell, clock.now())
        return {
            "cell": cell,
            **{f"base_{name}": price for name, price in now.base.items()},
            **{f"usage_{name}": price for name, price in now.usage.items()},
            "curve_lines": "\n".join(f"{share / 10:g} {height / 1000:g}" for share, height in now.curve),
        }

    def make(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        return price_list_set(principal=principal_of(request), **given)

    def preview(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Preview:
        prices = {name: given[name] for name in ("cell", "base", "usage", "curve")}
        detail = what_if(principal=principal_of(request), **prices)
        heads = [_("orders"), _("current price"), _("new price"), _("difference")]
        notes = [
            _(
                "Existing orders and quotes keep their prices. The tables show what open orders and orders of the last"
                " 30 days cost now, and what they would cost at the new prices."
            )
        ]
        if detail["orders_cut"]:
            notes.append(_("There are too many orders to count all of them. The tables count only the newest orders."))
        tables = [
            Table(
                _("Orders by band"), [_("band"), *heads], [_sum(row) for row in (*detail["by_band"], detail["orders"])]
            ),
            Table(
                _("Orders by tenant, largest price difference first"),
                [_("tenant"), *heads],
                [_sum(row) for row in detail["by_tenant"][:MOST_TENANTS]],
                _("There are no orders."),
            ),
        ]
        if detail["usage"]["count"]:
            hours = [_("metered hours of jobs"), *heads[1:]]
            tables.append(
                Table(
                    _("Usage of the last 30 days, by tenant"),
                    [_("tenant"), *hours],
                    [_sum(row) for row in (*detail["usage_by_tenant"][:MOST_TENANTS], detail["usage"])],
                )
            )
        tables.append(
            Table(
                _("Examples: prices for 30 days"),
                [_("band"), _("amount"), _("share already sold"), _("current price"), _("new price")],
                [
                    (
                        row["band"],
                        describe(NAMES.index(row["resource"]), row["quantity"]),
                        f"{format_number(row['sold_milli'] / 10)} %",
                        money.format_credits(row["before"], places=2),
                        money.format_credits(row["after"], places=2),
                    )
                    for row in detail["examples"]
                ],
            )
        )
        return Preview(title=_("Set these prices for cell %s?") % given["cell"], notes=notes, tables=tables)

    @display(description=gettext_lazy("prices of quota"))
    def base_shown(self, row: PriceList) -> SafeString:
        return _prices(row.base)

    @display(description=gettext_lazy("prices of usage"))
    def usage_shown(self, row: PriceList) -> SafeString | str:
        return _prices(row.usage) if row.usage else _("not charged")

    @display(description=gettext_lazy("price factors by sold share"))
    def curve_shown(self, row: PriceList) -> str:
        return (
            ", ".join(f"{format_number(share / 10)} %: ×{format_number(height / 1000)}" for share, height in row.curve)
            or "×1"
        )


_QUOTE = ("tenant", "cell", "band", "price_shown", "starts_at", "ends_at", "made_by", "valid_until")


class QuoteAdmin(FactsAdmin):
    price_shown = amount_column("price", gettext_lazy("price"))
    list_display = ("id", *_QUOTE)
    list_filter = ["band", "cell"]
    list_select_related = ["tenant", "band"]
    search_fields = ["=tenant__name", "=id"]
    ordering = ["-id"]
    fields = (*_QUOTE, "amounts", "prices", "created_at")


def _point(number: int, line: str) -> list[int]:
    wrong = _(
        "Line %(number)d is “%(line)s”. Give the percentage of sold quota and a price factor, such as “80 1.3”."
    ) % {"number": number, "line": line[:40]}
    try:
        share, height = (Decimal(text) for text in line.replace("%", " ").replace("×", " ").split())
        point = [share * 10, height * 1000]
        if any(value != value.to_integral_value() for value in point):
            raise forms.ValidationError(wrong)
        return [int(value) for value in point]
    except (ValueError, InvalidOperation, OverflowError) as error:
        raise forms.ValidationError(wrong) from error


def _sum(row: dict[str, Any]) -> tuple[Any, ...]:
    change = row["after"] - row["before"]
    return (
        row["name"] or _("all"),
        row["count"],
        money.format_credits(row["before"], places=2),
        money.format_credits(row["after"], places=2),
        f"{'+' if change > 0 else ''}{money.format_credits(change, places=2)}",
    )


def _prices(named: dict[str, int]) -> SafeString:
    return format_html_join(", ", "{} {}", ((name, money.format_credits(price)) for name, price in named.items()))


PAGES = {PriceList: PriceListAdmin, Quote: QuoteAdmin}
