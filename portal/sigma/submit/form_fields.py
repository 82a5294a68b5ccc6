"""The fields of the form for a job, and the job file that they stand for. Pure.

    job file ── fields_of ──► texts of the fields ── the user changes some ──► with_fields ──► job file

The form shows the fields that most jobs need. Everything else in the job file stays as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from quota.vocabulary.bands import FREE_PRIORITY, Band, band_of
from quota.vocabulary.errors import Rejected

# The choice of the band for priority 0, which needs no quota.
FREE = "free"
# An argument that a command can contain without quotes.
_PLAIN = re.compile(r"[^\s'\"\\#]+")


class Field(NamedTuple):
    """A field of the form. `path`: the place of its value in the job file, such as `task.limit.cpu`. `shown`: converts
    a value of the job file to the text of the field. `read`: converts the text to a value; raises `ValueError`, with a
    message for the user, if the text is wrong.
    """

    path: str
    shown: Callable[[Any], str]
    read: Callable[[str], Any]


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _words(value: Any) -> str:
    return " ".join(map(_text, value)) if isinstance(value, list) else ""


def _command(value: Any) -> str:
    if not isinstance(value, list):
        return ""
    return " ".join(one if _PLAIN.fullmatch(one) else shlex.quote(one) for one in map(_text, value))


def _read_command(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise ValueError("close the quotation mark, or remove the backslash at the end") from None


def _read_number(text: str) -> Any:
    """Return a whole number, or the text if it is not one. The check of the job file rejects a wrong text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text


def _read_words(text: str) -> list[str]:
    return text.replace(",", " ").split()


FIELDS: Mapping[str, Field] = {
    "name": Field("name", _text, str),
    "cell": Field("cell", _text, str),
    "tenant": Field("tenant", _text, str),
    "tasks": Field("tasks", _text, _read_number),
    "band": Field("priority", _text, lambda text: FREE_PRIORITY if text == FREE else text),
    "command": Field("task.command", _command, _read_command),
    "packages": Field("task.packages", _words, _read_words),
    "cpu": Field("task.limit.cpu", _text, _read_number),
    "ram": Field("task.limit.ram", _text, _read_number),
    "disk": Field("task.limit.disk", _text, _read_number),
    "ports": Field("task.ports", _words, _read_words),
}
# The values of fields that a job file leaves out.
_DEFAULTS = {"tasks": "1", "band": str(FREE_PRIORITY)}
_BY_PATH = {field.path: name for name, field in FIELDS.items()}


def fields_of(file: Mapping[str, Any], bands: Sequence[Band]) -> dict[str, str]:
    """Return the text of each field of the form for a job file, by the name of the field. The text is "" if the file
    has no value. `bands`: all priority bands.
    """
    texts = {name: field.shown(_value(file, field.path)) or _DEFAULTS.get(name, "") for name, field in FIELDS.items()}
    texts["band"] = _band(texts["band"], bands)
    return texts


def changed_fields(posted: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a sent form whose text differs from the text `before`, without spaces around them."""
    given = {name: _as_sent(name, posted[name]) for name in FIELDS if name in posted}
    return {name: text for name, text in given.items() if text != _as_sent(name, before.get(name, ""))}


def with_fields(file: Mapping[str, Any], changed: Mapping[str, str]) -> dict[str, Any]:
    """Return a job file with other values for the fields `changed`. An empty text removes the value. Raises `Rejected`,
    which names the places of wrong texts in the job file.
    """
    found, wrong = deepcopy(dict(file)), {}
    for name, text in changed.items():
        field = FIELDS[name]
        try:
            _put(found, field.path, field.read(text) if text else None)
        except ValueError as error:
            wrong[field.path] = str(error)
    if wrong:
        raise Rejected("invalid-spec", "; ".join(f"{path}: {what}" for path, what in wrong.items()), fields=wrong)
    return found


def errors_of(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the error texts of a rejected job file by the name of the form's field. `fields`: the error texts by the
    place in the job file, such as `task.command[2]`. Places without a field of the form are left out.
    """
    found: dict[str, str] = {}
    for path, text in fields.items():
        name = _BY_PATH.get(path.partition("[")[0], path if path in FIELDS else "")
        if name:
            found.setdefault(name, text)
    return found


def _as_sent(name: str, text: str) -> str:
    """Return a text as each browser sends it. A field of one line loses line breaks; the command may have several."""
    text = text.replace("\r\n", "\n").strip()
    return text if name == "command" else text.replace("\n", "")


def _band(priority: str, bands: Sequence[Band]) -> str:
    """Return the band of a priority, which is a number or already the name of a band, or "" if there is none."""
    if not priority.isdecimal():
        return priority
    number = int(priority[:9])
    if number == FREE_PRIORITY:
        return FREE
    try:
        return band_of(number, bands).name
    except LookupError:
        return ""


def _value(file: Mapping[str, Any], path: str) -> Any:
    value: Any = file
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _put(file: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for part in parents:
        inner = file.get(part)
        if not isinstance(inner, dict):
            inner = file[part] = {}
        file = inner
    if value is None:
        file.pop(last, None)
    else:
        file[last] = value
