"""Prints the output of commands: a table or a sentence for people, or the JSON of the API with `--json`.

A table has one complete row per line, so that grep and awk can process it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import typer

from portal.cli.failure import CommandFailed
from quota.vocabulary import money, resources

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class ReaderGone(Exception):
    """The error if the program that reads standard output has closed it, for example `head` in `borgctl tasks web |
    head`.
    """


def write(text: str, *, flush: bool = False) -> None:
    """Write text to standard output. Raises `ReaderGone` if the reader has closed the pipe, and `CommandFailed` if the
    text cannot be written for another reason.
    """
    try:
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise CommandFailed("output", f"cannot write to standard output: {error.strerror}") from error


def as_json(value: Any) -> None:
    """Write a value as JSON."""
    write(json.dumps(value, indent=2) + "\n")


def as_json_line(value: Any) -> None:
    """Write one of several JSON documents as one line, and flush the output."""
    write(json.dumps(value) + "\n", flush=True)


def say(text: str) -> None:
    write(printable(text) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Write a table with aligned columns, or the text `empty` if there are no rows."""
    shown = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    if not shown:
        say(empty)
        return
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    head = _line(columns, widths)
    write(f"{_BOLD}{head}{_PLAIN}\n" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else f"{head}\n")
    for row in shown:
        write(_line(row, widths) + "\n")


def details(values: Iterable[tuple[str, Any]], *, width: int = 16, indent: str = "  ") -> None:
    """Write one line per name and value. Omit empty values."""
    for name, value in values:
        if value not in ("", None):
            say(f"{indent}{name:<{width}}{value}")


def sure(question: str) -> None:
    """Ask for confirmation on standard error. Raises `CommandFailed` if the person does not confirm."""
    if not typer.confirm(question, err=True):
        raise CommandFailed("aborted", "the command was not confirmed, so nothing was changed")


def complain(failed: CommandFailed, *, json_wanted: bool) -> None:
    """Write the reason of a failure to standard error. With `--json`, also write the problem document to standard
    output.
    """
    if json_wanted:
        as_json(failed.document)
    lines = [f"borgctl: {failed.detail}"]
    lines += [f"  {name}: {what}" for name, what in failed.fields.items() if what not in failed.detail]
    lines += [f"  {line}" for line in failed.hints()]
    if sys.stderr is not None:
        sys.stderr.write("".join(f"{printable(line)}\n" for text in lines for line in text.splitlines()))


def remark(text: str) -> None:
    """Write a message of a running command to standard error."""
    if sys.stderr is not None:
        sys.stderr.write(f"borgctl: {printable(text)}\n")
        sys.stderr.flush()


def printable(text: str) -> str:
    """Return `text` with spaces instead of control characters. A text of another user could
    otherwise control the terminal.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def when(text: str | None) -> str:
    """Format a time of the API in the time zone of this machine."""
    if not text:
        return ""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def would_be(dry_run: bool) -> str:
    return "would be" if dry_run else "is"


def number(count: int, noun: str) -> str:
    """Format a number with a noun: `3 tasks`, `1 task`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def share(part: float | None) -> str:
    """Format a share: `25%`, or `-` for an unknown share."""
    return "-" if part is None else f"{part:.0%}"


def quantity(name: str, value: int) -> str:
    """Format a quantity of a resource: CPU in cores, memory and disk in powers of 1024 bytes."""
    if name in ("cpu", "accelerators"):
        return resources.format_number(value / 1000)
    if name in resources.NAMES:
        return resources.describe(resources.NAMES.index(name), value).removesuffix(f" {name}")
    return resources.format_number(value)


def credits_of(micro: int) -> str:
    """Format an amount in credits, with all digits."""
    return money.format_credits(micro)


def figures(values: Mapping[str, int]) -> str:
    """Format the quantities of several resources. Omit zeros."""
    return ", ".join(f"{name} {quantity(name, value)}" for name, value in values.items() if value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
