"""The rules for config files: names, contents, comments, and lines that look like secrets. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from quota.vocabulary.errors import invalid
from scheduling.secrets.grant_rules import is_name
from scheduling.spec import parser
from scheduling.spec.field_errors import Problems, rejection
from scheduling.spec.masking import looks_secret

MAX_BYTES = 128 * 1024
MAX_COMMENT = 200
# difflib compares at most so many different lines of each side. Its time grows with the square of their number.
MOST_COMPARED = 1_000
_MOST_NAMED, _LONGEST_NAME = 5, 63
_CONTEXT = 3
_FIRST_LINE = re.compile(r"([-+])(\d+)")
# `NAME=value`, `name: value`, `{"name": "value", …`, `<name>value` and the like, at any place of a line.
_SETTING = re.compile(
    r"""(?<![A-Za-z0-9_.-])([A-Za-z_][A-Za-z0-9_.-]{0,99})["']?\s{0,9}[:=>]\s{0,9}["']?([^\s"',{}\[\]|<>]+)"""
)


def check_name(name: str) -> None:
    """Raise `Rejected` if `name` cannot be the name of a config file."""
    if not is_name(name):
        detail = f"{name[:63]!r} is not the name of a config file; use lower-case letters, digits and hyphens"
        raise invalid("name", f"{detail}, a letter first, at most 63 characters")


def check_comment(comment: str) -> None:
    """Raise `Rejected` if the comment on a version is too long or has characters that a line of text has not."""
    if len(comment) > MAX_COMMENT:
        raise invalid("comment", f"the comment has {len(comment)} characters; give at most {MAX_COMMENT}")
    if not comment.isprintable():
        raise invalid("comment", "the comment has line breaks or control characters; write it in one line")


def text_of(content: bytes) -> str:
    """Return the text of a config file. Raises `Rejected` if it is empty, too long, or not text in UTF-8."""
    if not content:
        raise invalid("content", "the file is empty; give at least one byte")
    if len(content) > MAX_BYTES:
        detail = f"the file has {len(content)} bytes; give at most {MAX_BYTES}, and put larger files into a package"
        raise invalid("content", detail)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        detail = f"the file is not text in UTF-8: byte {error.start} is wrong; convert it, or put it into a package"
        raise invalid("content", detail) from None
    if "\0" in text:
        detail = "the file has NUL characters, so it is not text; put it into a package"
        raise invalid("content", detail)
    return text


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise `Rejected`, which names the labels, if labels of a config file are not valid."""
    problems = Problems()
    parser.check_labels(dict(labels), problems)
    if problems.found:
        raise rejection(problems.found)


def check_no_secrets(text: str, *, name: str) -> None:
    """Raise `Rejected` if lines of a config file look like secrets. The error does not contain their values."""
    lines = list(secret_lines(text))
    if lines:
        found = ", ".join(
            f"{number} ({setting})" if setting else str(number) for number, setting in lines[:_MOST_NAMED]
        )
        more = f" and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
        raise invalid(
            "content",
            f"lines of {name} look like secrets: {found}{more}. Config files are stored in plain text. Store the values"
            " with `borgctl secret set`, or confirm with --plain (REST: plain) that they are not secret",
            "looks-secret",
        )


def secret_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers of lines that look like secrets, from 1, with the name of the setting or an empty text."""
    for number, line in enumerate(text.splitlines(), 1):
        if looks_secret("", line):
            yield number, ""
            continue
        for found in _SETTING.finditer(line):
            if looks_secret(found[1], found[2]):
                yield number, found[1][:_LONGEST_NAME]
                break


def diff(old: str, new: str, *, name: str, before: int, after: int) -> list[str]:
    """Return the difference of two versions in the format of `diff -u`. `before`, `after`: the numbers of the versions.

    Lines at the beginning and the end that both have are not compared. If too many lines are left, all of them count
    as changed.
    """
    ours, theirs = _lines(old), _lines(new)
    if ours == theirs:
        return []
    first = _common(ours, theirs)
    last = _common(ours[first:][::-1], theirs[first:][::-1])
    start, end = max(0, first - _CONTEXT), max(0, last - _CONTEXT)
    ours, theirs = ours[start : len(ours) - end], theirs[start : len(theirs) - end]
    header = (f"{name} version {before}", f"{name} version {after}")
    lines = [f"--- {header[0]}", f"+++ {header[1]}"]
    if max(len(ours), len(theirs)) > MOST_COMPARED:
        place = f"@@ -{start + 1},{len(ours)} +{start + 1},{len(theirs)} @@"
        return [*lines, place, *(f"-{line}" for line in ours), *(f"+{line}" for line in theirs)]
    found = difflib.unified_diff(ours, theirs, *header, lineterm="", n=_CONTEXT)
    return [*lines, *(_moved(line, start) if line.startswith("@@") else line for line in list(found)[2:])]


def _moved(place: str, start: int) -> str:
    """Return a line such as `@@ -1,2 +1,3 @@` for lines that come `start` lines later."""
    return _FIRST_LINE.sub(lambda found: f"{found[1]}{int(found[2]) + start}", place)


def _lines(text: str) -> list[str]:
    """Return the lines of a text. A missing line break at the end is shown, as `diff` does."""
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += "\n\\ No newline at end of file"
    else:
        del lines[-1]
    return lines


def _common(ours: list[str], theirs: list[str]) -> int:
    count = 0
    for a, b in zip(ours, theirs, strict=False):
        if a != b:
            break
        count += 1
    return count
