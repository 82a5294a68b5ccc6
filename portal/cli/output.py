"""What a command prints: a table or a sentence for people, the API's JSON with `--json`.

Tables are aligned and never cut, one row a line, so that grep and awk can work with them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from portal.cli.failure import CommandFailed
from quota.vocabulary import money, resources

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class ReaderGone(Exception):
    """Whoever read standard output has what it wanted (`borgctl tasks web | head`)."""


def write(text: str, *, flush: bool = False) -> None:
    """To standard output, as it is. Raises `ReaderGone`; `CommandFailed` when the disk behind it is full."""
    try:
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise CommandFailed("output", f"can't write the answer: {error.strerror}") from error


def as_json(value: Any) -> None:
    write(json.dumps(value, indent=2) + "\n")


def as_json_line(value: Any) -> None:
    """One of many documents, as one line that is seen at once."""
    write(json.dumps(value) + "\n", flush=True)


def say(text: str) -> None:
    write(printable(text) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Columns aligned; `empty` says what to do when there is no row."""
    shown = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    if not shown:
        say(empty)
        return
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    head = _line(columns, widths)
    write(f"{_BOLD}{head}{_PLAIN}\n" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else f"{head}\n")
    for row in shown:
        write(_line(row, widths) + "\n")


def complain(failed: CommandFailed, *, json_wanted: bool) -> None:
    """The reason on standard error; with `--json` also its document on standard output."""
    if json_wanted:
        as_json(failed.document)
    lines = [f"borgctl: {failed.detail}"]
    lines += [f"  {name}: {what}" for name, what in failed.fields.items() if what not in failed.detail]
    lines += [f"  {line}" for line in failed.hints()]
    if sys.stderr is not None:
        sys.stderr.write("".join(f"{printable(line)}\n" for text in lines for line in text.splitlines()))


def remark(text: str) -> None:
    """To standard error, by a command that goes on."""
    if sys.stderr is not None:
        sys.stderr.write(f"borgctl: {printable(text)}\n")
        sys.stderr.flush()


def printable(text: str) -> str:
    """Without the characters that move a terminal's cursor: what tasks and strangers wrote is shown too."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def when(text: str | None) -> str:
    """A time of the API's, in this machine's zone."""
    if not text:
        return ""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def number(count: int, noun: str) -> str:
    """`3 tasks`, `1 task`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def share(part: float | None) -> str:
    """`25%`; `-` where it is not known."""
    return "-" if part is None else f"{part:.0%}"


def quantity(name: str, value: int) -> str:
    """A quantity of the axis for people: CPU in cores, the rest in powers of 1024 bytes."""
    if name in ("cpu", "accelerators"):
        return resources.format_number(value / 1000)
    if name in resources.NAMES:
        return resources.describe(resources.NAMES.index(name), value).removesuffix(f" {name}")
    return resources.format_number(value)


def credits_of(micro: int) -> str:
    """An amount of money in credits, to the last digit."""
    return money.format_credits(micro)


def figures(values: Mapping[str, int], show: Callable[[str, int], str] = quantity) -> str:
    return ", ".join(f"{name} {show(name, value)}" for name, value in values.items() if value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
