"""What a command prints: a table or a sentence for people, the API's JSON with `--json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from portal.cli.failure import Failed

# A pipe has no width: a row is a line there, so that grep and awk can work with it.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 1000)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def as_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, sort_keys=False) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Columns aligned; `empty` says what to do when there is no row."""
    shown = [[("" if cell is None else str(cell)) for cell in row] for row in rows]
    if not shown:
        console.print(empty, markup=False)
        return
    out = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        out.add_column(column, overflow="fold", no_wrap=not console.is_terminal)
    for row in shown:
        out.add_row(*row)
    console.print(out, markup=False)


def say(text: str) -> None:
    console.print(text, markup=False)


def complain(failed: Failed, *, json_wanted: bool) -> None:
    if json_wanted:
        as_json(failed.document)
    errors.print(f"borgctl: {failed.detail}", markup=False)
    for name, what in failed.fields.items():
        if what not in failed.detail:
            errors.print(f"  {name}: {what}", markup=False)


def when(text: str | None) -> str:
    """A time of the API's, in this machine's zone."""
    if not text:
        return ""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def figures(values: Mapping[str, int], show: Callable[[str, int], str]) -> str:
    return ", ".join(f"{name} {show(name, value)}" for name, value in values.items() if value)
