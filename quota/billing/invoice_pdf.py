"""Invoices as PDF on A4 pages. The same invoice always gives the same bytes.

Each character uses the first installed font of `_FONTS` that contains it. A character that no font contains is shown
as a question mark. If none of these fonts is installed, the PDF shows only Latin-1. The CSV file has all characters.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _
from reportlab.lib import colors
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFError, TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import LongTable, Paragraph, SimpleDocTemplate, Spacer
from reportlab.platypus.flowables import Flowable

from quota.billing.invoice_table import InvoiceLine, lines_of
from quota.models import Invoice
from quota.vocabulary.money import format_credits

_FOLDERS = ("/usr/share/fonts/truetype", "/usr/share/fonts", "/usr/local/share/fonts", "/Library/Fonts")
_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "LiberationSans-Regular.ttf",
    "FreeSans.ttf",
    "Arial Unicode.ttf",
    "DroidSansFallbackFull.ttf",
    "NotoSansArabic-Regular.ttf",
    "NotoSansHebrew-Regular.ttf",
    "NotoSansDevanagari-Regular.ttf",
    "NotoSansThai-Regular.ttf",
)
_PLAIN = "Helvetica"
_WIDTHS = (21 * mm, 54 * mm, 32 * mm, 45 * mm, 26 * mm)
_LINE, _SHADE = colors.HexColor("#c8cdd5"), colors.HexColor("#f1f3f6")


def invoice_pdf(invoice: Invoice) -> bytes:
    """Return an invoice or a draft as PDF."""
    out = io.BytesIO()
    title = _title(invoice)
    document = SimpleDocTemplate(
        out,
        pagesize=A4,
        leftMargin=16 * mm,
        rightMargin=16 * mm,
        topMargin=18 * mm,
        bottomMargin=18 * mm,
        title=title,
        author="Borg Portal",
        subject=f"{invoice.month:%Y-%m}",
        invariant=1,
    )
    document.build(
        [*_head(invoice, title), _table(invoice), Spacer(1, 6 * mm), _sums(invoice)], canvasmaker=_pages(title)
    )
    return out.getvalue()


def _title(invoice: Invoice) -> str:
    if invoice.pk is None:
        return _("Draft of the invoice for %(month)s") % {"month": f"{invoice.month:%Y-%m}"}
    return _("Invoice %(number)s") % {"number": invoice.number}


def _head(invoice: Invoice, title: str) -> list[Flowable]:
    zone = ZoneInfo(invoice.time_zone)
    begins, ends = invoice.begins_at.astimezone(zone), invoice.ends_at.astimezone(zone)
    detail = [
        (
            _("Billed to"),
            f"{invoice.tenant.title} ({invoice.tenant.name})" if invoice.tenant.title else invoice.tenant.name,
        ),
        (_("Month"), f"{invoice.month:%Y-%m}"),
        (_("Begins at"), f"{begins:%F %H:%M} {invoice.time_zone}"),
        (_("Ends at"), f"{ends:%F %H:%M} {invoice.time_zone}"),
        (_("Created at"), f"{invoice.issued_at.astimezone(zone):%F %H:%M}"),
    ]
    facts = LongTable(
        [[_text(name), _text(value)] for name, value in detail],
        colWidths=(30 * mm, 148 * mm),
        hAlign="LEFT",
        style=[("LEFTPADDING", (0, 0), (-1, -1), 0), ("TOPPADDING", (0, 0), (-1, -1), 0)],
    )
    return [_text(title, size=17), Spacer(1, 5 * mm), facts, Spacer(1, 6 * mm)]


def _table(invoice: Invoice) -> Flowable:
    head = [_("Date"), _("Item"), _("Cell, band"), _("Period"), _("Credits")]
    rows = [[_text(name, right=name == head[-1]) for name in head]]
    rows += [_row(line) for line in lines_of(invoice)]
    if len(rows) == 1:
        rows.append([_text(""), _text(_("Nothing was charged.")), "", "", ""])
    style = [
        ("BACKGROUND", (0, 0), (-1, 0), _SHADE),
        ("LINEBELOW", (0, 0), (-1, -1), 0.4, _LINE),
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("FONT", (0, 1), (-1, -1), _fonts()[0][0], 9, 11),
        ("ALIGN", (-1, 0), (-1, -1), "RIGHT"),
    ]
    return LongTable(rows, colWidths=_WIDTHS, repeatRows=1, style=style)


def _row(line: InvoiceLine) -> list[Any]:
    what = {
        "charge": _("Order %(order)s"),
        "refund": _("Order %(order)s, refund: %(text)s"),
        "usage": _("Measured usage"),
        "credit": _("Credit, %(text)s"),
    }.get(line.kind, "%(text)s") % {"order": line.order, "text": line.text}
    place = f"{line.cell}, {line.band}" if line.band else line.cell
    period = f"{line.starts_at:%F} – {line.ends_at:%F}" if line.starts_at and line.ends_at else ""
    # Only cells that may need another font or a second line are paragraphs, because paragraphs are slow.
    return [f"{line.at:%F}" if line.at else "", _text(what), _text(place), period, format_credits(line.amount)]


def _sums(invoice: Invoice) -> Flowable:
    detail = [(_("Charged"), invoice.charged), (_("Refunded"), -invoice.refunded), (_("Total"), invoice.total)]
    return LongTable(
        [[_text(name), _text(format_credits(amount), right=True)] for name, amount in detail],
        colWidths=(40 * mm, 40 * mm),
        hAlign="RIGHT",
        style=[("LINEABOVE", (0, -1), (-1, -1), 1, colors.black), ("BACKGROUND", (0, -1), (-1, -1), _SHADE)],
    )


def _text(given: str, *, right: bool = False, size: int = 9) -> Paragraph:
    return Paragraph(_marked(given, _fonts()), _style(right, size))


@cache
def _style(right: bool, size: int) -> ParagraphStyle:
    return ParagraphStyle(
        f"{size}{right}",
        fontName=_fonts()[0][0],
        fontSize=size,
        leading=size * 1.25,
        alignment=TA_RIGHT if right else 0,
        splitLongWords=True,
    )


_Font = tuple[str, Callable[[str], bool]]


@cache
def _fonts() -> tuple[_Font, ...]:
    """Return the installed fonts. Each is a pair: its name, and a function that returns whether it has a character."""
    found: list[_Font] = []
    for name in _FONTS:
        path = next((path for folder in _FOLDERS for path in sorted(Path(folder).rglob(name))), None)
        if path is None:
            continue
        try:
            font = TTFont(path.stem, str(path))
        except TTFError:  # the font has outlines that PDF does not support
            continue
        pdfmetrics.registerFont(font)
        glyphs = font.face.charToGlyph
        found.append((path.stem, lambda letter, glyphs=glyphs: ord(letter) in glyphs))  # type: ignore[misc]
    return tuple(found) or ((_PLAIN, lambda letter: ord(letter) < 256),)


def _marked(given: str, fonts: Sequence[_Font]) -> str:
    """Return the text `given` as the markup of a PDF paragraph: each character with the first font that contains it.

    White space becomes single spaces. A character that no font contains becomes a question mark.
    """
    runs: list[tuple[str, list[str]]] = []
    for letter in " ".join(given.split()):
        font = next((name for name, has in fonts if has(letter)), None)
        shown = letter if font else "?"
        name = font or fonts[0][0]
        if not runs or runs[-1][0] != name:
            runs.append((name, []))
        runs[-1][1].append(shown)
    return "".join(f'<font name="{name}">{escape("".join(letters))}</font>' for name, letters in runs)


def _pages(title: str) -> type[Canvas]:
    """Return a PDF canvas class that writes the page number and the number of pages at the bottom of each page."""

    class Pages(Canvas):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._kept: list[dict[str, Any]] = []

        def showPage(self) -> None:  # noqa: N802 - reportlab's name
            self._kept.append(dict(self.__dict__))
            self._startPage()

        def save(self) -> None:
            for number, page in enumerate(self._kept, start=1):
                self.__dict__.update(page)
                self.setFont(_fonts()[0][0], 8)
                self.setFillColor(colors.grey)
                of = {"number": number, "pages": len(self._kept)}
                self.drawString(16 * mm, 10 * mm, title)
                self.drawRightString(A4[0] - 16 * mm, 10 * mm, _("Page %(number)s of %(pages)s") % of)
                super().showPage()
            super().save()

    return Pages
