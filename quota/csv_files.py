"""Tables as CSV files with exact values, which are safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from django.http import HttpResponse

# Spreadsheets treat text that begins with one of these as a formula or a command.
_DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER = re.compile(r"^-?[0-9]+(\.[0-9]+)?\Z")


def cell_of(value: object) -> str:
    """Return a value as text for CSV. Text that a spreadsheet could read as a formula gets an apostrophe in front."""
    text = "" if value is None else str(value)
    if isinstance(value, str) and text.startswith(_DANGEROUS) and not _NUMBER.match(text):
        return f"'{text}"
    return text


def csv_of(rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    for row in rows:
        writer.writerow([cell_of(value) for value in row])
    return out.getvalue()


def csv_answer(name: str, rows: Iterable[Sequence[object]]) -> HttpResponse:
    """Return a CSV file as a download. `name`: the file name; it may contain letters, digits, dots and hyphens."""
    return file_answer(name, csv_of(rows), "text/csv; charset=utf-8")


def file_answer(name: str, content: str | bytes, content_type: str) -> HttpResponse:
    answer = HttpResponse(content, content_type=content_type)
    answer["Content-Disposition"] = f'attachment; filename="{re.sub(r"[^A-Za-z0-9._-]", "-", name)}"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer
