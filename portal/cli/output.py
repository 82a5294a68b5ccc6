"""Prints the output of commands: a table or a sentence for people, or the API's JSON if `--json` is given.

Each row of a table is one line, so that grep and awk can process it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import typer

from portal.cli.failure import CommandFailed
from quota.vocabulary import money, resources

_GAP = "  "
# A text with spaces that is longer is a sentence. A time with its zone is shorter.
_SENTENCE = 30
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class ReaderGone(Exception):
    """The error if the program that reads the output has closed the pipe, for example `head` in `borgctl tasks web |
    head`.
    """


def write(text: str, *, flush: bool = False) -> None:
    """Write text to standard output. Raises `ReaderGone` if the program that reads the output has closed the pipe.
    Raises `CommandFailed` if the text cannot be written for another reason.
    """
    try:
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise CommandFailed(
            "output", f"cannot write to standard output: {error.strerror}; write to another file"
        ) from error


def as_json(value: Any) -> None:
    """Write a value to standard output as JSON."""
    write(json.dumps(value, indent=2) + "\n")


def as_json_line(value: Any) -> None:
    """Write a value to standard output as one line of JSON, and flush the output."""
    write(json.dumps(value) + "\n", flush=True)


def say(text: str) -> None:
    write(printable(text) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Write a table with aligned columns to standard output. If there are no rows, write the text `empty`."""
    shown = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    if not shown:
        say(empty)
        return
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    if sys.stdout.isatty():
        _narrow(widths, columns, shown)
    head = _line(columns, widths)
    write(f"{_BOLD}{head}{_PLAIN}\n" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else f"{head}\n")
    for row in shown:
        write(_line(row, widths) + "\n")


def details(values: Iterable[tuple[str, Any]], *, width: int = 16, indent: str = "  ") -> None:
    """Write one line for each pair of name and value. Omit pairs whose value is empty."""
    for name, value in values:
        if value not in ("", None):
            say(f"{indent}{name:<{width}}{value}")


def sure(question: str) -> None:
    """Ask the user a yes-or-no question on standard error. Raises `CommandFailed` if the user does not answer yes."""
    if not typer.confirm(question, err=True):
        raise CommandFailed("aborted", "the command was not confirmed, so nothing was changed; answer y, or use --yes")


def complain(failed: CommandFailed, *, json_wanted: bool) -> None:
    """Write the reason of a failure to standard error. `json_wanted`: also write the error as JSON to standard
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
    """Write a message to standard error while a command is running."""
    if sys.stderr is not None:
        sys.stderr.write(f"borgctl: {printable(text)}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def progress(size: int, label: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error during the `with` block, if standard error is a terminal. The block gets a
    function that it calls with the number of further bytes that are done. `size`: the number of all bytes.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    with typer.progressbar(length=size, label=printable(label), file=sys.stderr) as bar:
        yield bar.update


def now_is(text: str) -> None:
    """Replace the current line of standard error by `text`, if standard error is a terminal. An empty text removes the
    line.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r\x1b[K{printable(text)[: width - 1]}")
        sys.stderr.flush()


def printable(text: str) -> str:
    """Replace control characters in `text` by spaces. Otherwise, text of another user could control this terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def when(text: str | None) -> str:
    """Format a time from the API, such as `2027-01-31T08:00:00Z`, in the time zone of this machine."""
    if not text:
        return ""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def would_be(dry_run: bool) -> str:
    return "would be" if dry_run else "is"


def number(count: int, noun: str) -> str:
    """Return a number and a noun as text: `3 tasks`, `1 task`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def share(part: float | None) -> str:
    """Format a fraction such as 0.25 as `25%`. Return `-` if the fraction is None, which means unknown."""
    return "-" if part is None else f"{part:.0%}"


def quantity(name: str, value: int) -> str:
    """Format a quantity of the resource `name`. CPU is shown in cores, memory and disk in units such as MiB and GiB."""
    if name in ("cpu", "accelerators"):
        return resources.format_number(value / 1000)
    if name in resources.NAMES:
        return resources.describe(resources.NAMES.index(name), value).removesuffix(f" {name}")
    return resources.format_number(value)


def credits_of(micro: int) -> str:
    """Format an amount of micro-credits as credits, with all digits."""
    return money.format_credits(micro)


def figures(values: Mapping[str, int]) -> str:
    """Format the quantities of several resources. Resources with the quantity 0 are omitted."""
    return ", ".join(f"{name} {quantity(name, value)}" for name, value in values.items() if value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut = (cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell, width in zip(cells, widths, strict=True))
    return _GAP.join(cell.ljust(width) for cell, width in zip(cut, widths, strict=True)).rstrip()


def _narrow(widths: list[int], columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Reduce the widths of columns so that the table fits on the terminal, if possible. Only columns with sentences
    become narrower, because users copy names, addresses and times from the others.
    """
    too_wide = sum(widths) + len(_GAP) * (len(widths) - 1) - shutil.get_terminal_size().columns
    while too_wide > 0:
        sentences = [n for n, width in enumerate(widths) if width > _SENTENCE and any(" " in row[n] for row in rows)]
        if not sentences:
            return
        widest = max(sentences, key=widths.__getitem__)
        less = min(too_wide, widths[widest] - max(_SENTENCE, len(columns[widest])))
        if less <= 0:
            return
        widths[widest] -= less
        too_wide -= less
