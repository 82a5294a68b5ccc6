"""Price lists: set by version, never changed; what orders would have cost is shown before one is set."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

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
from quota.admin.base import FactsAdmin, ServiceForm, principal_of
from quota.admin.previewed import Preview, PreviewedAdmin, Table
from quota.models import CellCapacity, PriceList, Quote
from quota.pricing.arithmetic import UNIT
from quota.pricing.price_lists import price_list_at, price_list_set
from quota.pricing.what_if import what_if
from quota.vocabulary import money
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import NAMES, describe, format_number

UNITS = {
    "cpu": gettext_lazy("a core and hour"),
    "ram": gettext_lazy("a GiB of RAM and hour"),
    "disk": gettext_lazy("a GiB of disk and hour"),
    "disk_bandwidth": gettext_lazy("a GiB/s of disk and hour"),
    "accelerators": gettext_lazy("an accelerator and hour"),
}
MOST_TENANTS = 50


class PriceListForm(ServiceForm):
    """The form of a price list: prices in credits, and the scarcity curve as lines of percent and factor."""

    cell = forms.ChoiceField(label=gettext_lazy("cell"), widget=UnfoldAdminSelectWidget())
    curve_lines = forms.CharField(
        label=gettext_lazy("scarcity"),
        required=False,
        widget=UnfoldAdminTextareaWidget(),
        help_text=gettext_lazy(
            "One line for each step: the percentage sold, and the factor that applies from it, such as “80 1.3”."
        ),
    )
    valid_from = forms.SplitDateTimeField(
        label=gettext_lazy("valid from"),
        required=False,
        widget=UnfoldAdminSplitDateTimeWidget(),
        help_text=gettext_lazy("Now, when left empty."),
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
        points = []
        for number, line in enumerate(self.cleaned_data["curve_lines"].splitlines(), start=1):
            if line.strip():
                points.append(_point(number, line))
        return points

    def _refuse(self, problem: Rejected) -> None:
        """The service names `base.cpu` and `curve.1`."""
        fields = {
            "curve_lines" if name.startswith("curve") else name.replace(".", "_"): what
            for name, what in problem.fields.items()
        }
        super()._refuse(Rejected(problem.code, problem.detail, fields=fields))

    def prices(self, kind: str) -> dict[str, int]:
        given = ((name, self.cleaned_data[f"{kind}_{name}"]) for name in UNIT)
        return {name: micro for name, micro in given if micro is not None}


class CreditsField(forms.CharField):
    """A form field that converts credits to micro-credits. Empty means None."""

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value).strip()  # type: ignore[union-attr]
        if not text:
            return None
        try:
            return money.parse(text)
        except money.AmountError as error:
            raise forms.ValidationError(str(error)) from error


def _credits(label: Any) -> CreditsField:
    return CreditsField(label=label, required=False, widget=UnfoldAdminTextInputWidget())


class PriceListAdmin(PreviewedAdmin):
    form = PriceListForm
    list_display = ["cell", "version", "base_shown", "usage_shown", "curve_shown", "valid_from", "note", "created_by"]
    list_filter = ["cell"]
    ordering = ["cell", "-version"]
    fieldsets = [
        (None, {"fields": ["cell", "valid_from", "note"]}),
        (gettext_lazy("Quota, in credits for"), {"fields": [f"base_{name}" for name in UNIT]}),
        (gettext_lazy("Usage, in credits for (empty: not charged)"), {"fields": [f"usage_{name}" for name in UNIT]}),
        (gettext_lazy("Scarcity"), {"fields": ["curve_lines"]}),
    ]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.fieldsets
        shown = [
            "cell",
            "version",
            "base_shown",
            "usage_shown",
            "curve_shown",
            "valid_from",
            "note",
            "created_by",
            "created_at",
        ]
        return [(None, {"fields": shown})]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is not None:
            return FactsAdmin.get_form(self, request, obj, change=change, **{**kwargs, "form": forms.ModelForm})
        amounts = {f"{kind}_{name}": _credits(unit) for kind in ("base", "usage") for name, unit in UNITS.items()}
        made = type("PricesForm", (PriceListForm,), amounts)

        def perform(bound: PriceListForm) -> Model:
            given = {
                "cell": bound.cleaned_data["cell"],
                "base": bound.prices("base"),
                "usage": bound.prices("usage"),
                "curve": bound.cleaned_data["curve_lines"],
                "note": bound.cleaned_data["note"],
                "valid_from": bound.cleaned_data["valid_from"],
            }
            return self.perform(request, given, None)

        made.perform = perform  # type: ignore[attr-defined]
        return made

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """The list in force of the cell in the query, else of the first: most of it stays."""
        cells = list(CellCapacity.objects.order_by("cell").values_list("cell", flat=True))
        cell = request.GET.get("cell", "")
        if cell not in cells:
            if not cells:
                return {}
            cell = cells[0]
        now = price_list_at(cell, clock.now())
        return {
            "cell": cell,
            **{f"base_{name}": money.format_credits(price) for name, price in now.base.items()},
            **{f"usage_{name}": money.format_credits(price) for name, price in now.usage.items()},
            "curve_lines": "\n".join(f"{share / 10:g} {height / 1000:g}" for share, height in now.curve),
        }

    def make(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        return price_list_set(principal=principal_of(request), **given)

    def preview(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Preview:
        detail = what_if(
            principal=principal_of(request),
            cell=given["cell"],
            base=given["base"],
            usage=given["usage"],
            curve=given["curve"],
        )
        heads = [_("orders"), _("did cost"), _("would cost"), _("difference")]
        lines = [_("What was ordered and quoted keeps its price. Orders of the last 30 days and the open ones:")]
        if detail["orders_cut"]:
            lines.append(_("There are more orders; the newest were counted."))
        tables = [
            Table(_("By band"), [_("band"), *heads], [_sum(row) for row in (*detail["by_band"], detail["orders"])]),
            Table(
                _("By tenant, what changes most first"),
                [_("tenant"), *heads],
                [_sum(row) for row in detail["by_tenant"][:MOST_TENANTS]],
                _("Nobody has ordered."),
            ),
        ]
        if detail["usage"]["count"]:
            hours = [_("hours of jobs"), *heads[1:]]
            tables.append(
                Table(
                    _("Usage of the last 30 days, by tenant"),
                    [_("tenant"), *hours],
                    [_sum(row) for row in (*detail["usage_by_tenant"][:MOST_TENANTS], detail["usage"])],
                )
            )
        tables.append(
            Table(
                _("Examples, for 30 days"),
                [_("band"), _("what"), _("sold already"), _("costs now"), _("would cost")],
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
        return Preview(title=_("Set these prices for cell %s?") % given["cell"], told=lines, tables=tables)

    @display(description=gettext_lazy("quota"))
    def base_shown(self, row: PriceList) -> SafeString:
        return _prices(row.base)

    @display(description=gettext_lazy("usage"))
    def usage_shown(self, row: PriceList) -> SafeString | str:
        return _prices(row.usage) if row.usage else _("not charged")

    @display(description=gettext_lazy("scarcity"))
    def curve_shown(self, row: PriceList) -> str:
        return (
            ", ".join(f"{format_number(share / 10)} %: ×{format_number(height / 1000)}" for share, height in row.curve)
            or "×1"
        )


class QuoteAdmin(FactsAdmin):
    list_display = ["id", "tenant", "cell", "band", "price_shown", "starts_at", "ends_at", "made_by", "valid_until"]
    list_filter = ["band", "cell"]
    list_select_related = ["tenant", "band"]
    search_fields = ["=tenant__name", "=id"]
    ordering = ["-id"]
    fields = [
        "tenant",
        "cell",
        "band",
        "amounts",
        "price_shown",
        "starts_at",
        "ends_at",
        "prices",
        "made_by",
        "created_at",
        "valid_until",
    ]

    @display(description=gettext_lazy("price"))
    def price_shown(self, row: Quote) -> str:
        return money.format_credits(row.price)


def _point(number: int, line: str) -> list[int]:
    wrong = _("Line %(number)d: %(line)s; give percent sold and a factor, such as “80 1.3”.") % {
        "number": number,
        "line": line[:40],
    }
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
