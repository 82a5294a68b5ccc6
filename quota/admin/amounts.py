"""Amounts of money in forms and lists of the console. Users see credits. The database stores micro-credits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextInputWidget

from quota.vocabulary.money import AmountError, format_credits, parse


class AmountField(forms.Field):
    """A form field for credits, such as `12.5`. Its value is in micro-credits, or None if the field is empty."""

    widget = UnfoldAdminTextInputWidget

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("help_text", _("In credits, such as 1200 or 12.5."))
        super().__init__(**kwargs)

    def to_python(self, value: Any) -> int | None:
        text = str(value or "").strip()
        if not text:
            return None
        try:
            return parse(text)
        except AmountError as error:
            raise ValidationError(str(error)) from error

    def prepare_value(self, value: Any) -> Any:
        return format_credits(value).replace(",", "") if isinstance(value, int) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return str(self.prepare_value(initial) or "") != str(data or "")


def amount_text(micro: int | None) -> SafeString | str:
    """Return an amount of micro-credits as HTML text in credits, such as `1,200.50`, or a dash for None."""
    if micro is None:
        return "–"
    return format_html('<span class="whitespace-nowrap tabular-nums">{}</span>', format_credits(micro))


def amount_column(field: str, description: Any) -> Callable[[Any, Any], SafeString | str]:
    """Return a column for lists of the console. The column shows the amount of money in the model's field `field`, and
    users can sort by it.
    """

    @display(description=description, ordering=field)
    def column(_page: Any, row: Any) -> SafeString | str:
        return amount_text(getattr(row, field))

    return column
