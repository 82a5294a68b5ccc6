"""Collect the problems of a job file. Each problem has its path in the file, and says what to do. Pure."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import format_number
from scheduling.core.vocabulary.requirement import Relation

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_CURE = "use lower-case letters, digits and hyphens, a letter first, at most 63 characters"


MAX_DURATION_S = 366 * 86_400


class Problems:
    """The problems of a job file. `found`: {path: message}, in the order in which the problems were found. A message
    says what is wrong and what to do.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def add(self, path: str, message: str) -> None:
        """Add a problem, unless the path already has one. A long message is cut, because it may quote the file."""
        self.found.setdefault(path[:200], message[:500])

    def number(self, path: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:  # true of NaN too
            shown = format_number(float(value), 6, separators=False) if abs(value) < 1e18 else "this number"
            least, most = (format_number(bound, 12, separators=False) for bound in (low, high))
            self.add(path, f"{shown} is out of range; give a number from {least} to {most}")

    def duration(self, path: str, value: float, without: str, *, least_s: int = 1) -> None:
        """Add a problem if `value`, in seconds, is not from `least_s` to 366 days. `without`: when to leave the field
        out.
        """
        if not least_s <= value <= MAX_DURATION_S:  # true of NaN too
            shown = f"{value:.15g}" if abs(value) < 1e18 else "this number"
            days = MAX_DURATION_S // 86_400
            bounds = f"{least_s} to {MAX_DURATION_S} seconds ({days} days)"
            self.add(path, f"{shown} is out of range; give {bounds}, or leave it out {without}")

    def text(self, path: str, value: str, longest: int) -> None:
        """Add a problem if `value` has a NUL character or more than `longest` characters."""
        if "\x00" in value:
            self.add(path, "contains a NUL character; remove it")
        elif len(value) > longest:
            self.add(path, f"the value has {len(value)} characters; give at most {longest}")

    def choice(self, path: str, value: str, known: Iterable[str]) -> None:
        if value not in (values := list(known)):
            self.add(path, f"{value!r} is unknown; give one of {', '.join(values)}")

    def count(self, path: str, values: Collection[Any], most: int, what: str) -> None:
        if len(values) > most:
            self.add(path, f"has {len(values)} {what}; give at most {most}")

    def label(self, path: str, value: str) -> None:
        if not DNS_LABEL.fullmatch(value):
            self.add(path, f"{value!r} is not a DNS label; {LABEL_CURE}")


MOST_NAMED = 10  # problems in the text of a rejection; its `fields` have all of them


def rejection(problems: Mapping[str, str]) -> Rejected:
    """Return the rejection of a job file. `problems`: {path in the file: message}."""
    named = [f"{path}: {message}" for path, message in problems.items()]
    more = [f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return Rejected("invalid-spec", "; ".join(named[:MOST_NAMED] + more), fields=problems)


MOST_SHAPES = 20  # wrong shapes of one file that are named
_Shape = TypeVar("_Shape", bound=msgspec.Struct)
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_EXPECTED = re.compile(r"Expected `([\w |]+?)(?: \| null)?`, got")
_GIVE = {
    "bool": "true or false",
    "int": "a whole number, without quotes",
    "float": "a number, without quotes",
    "str": "text, with quotes around numbers",
    "array": "a list",
    "object": "fields with values",
}


def convert(given: Any, shape: type[_Shape], problems: Problems, path: str) -> _Shape | None:
    """Convert `given` to a struct of type `shape`. Add a problem for each part of `given` that has a wrong type or
    name.

    `path`: the path of `given` in the job file. Wrong parts are left out of the result, and the caller checks the
    values in the result. Returns None if a required field is missing or there are more than `MOST_SHAPES` wrong parts.
    """
    for attempt in range(MOST_SHAPES):
        try:
            return msgspec.convert(given, shape)
        except msgspec.ValidationError as error:
            inner, name = _add(str(error), shape, problems, path)
        at = _steps(inner)
        if attempt == 0:
            given = copy.deepcopy(given)
        # If a required field is missing, the object that should have it is removed.
        if not (_removed(given, [*at, name] if name else at) or _removed(given, at)):
            return None
    return None


def _add(text: str, shape: type[msgspec.Struct], problems: Problems, path: str) -> tuple[str, str]:
    """Add the problem that the msgspec error `text` describes. Return its path in the input, and the name of the
    unknown or missing field at this path, or "" if the problem is another one.
    """
    where = _PATH.search(text)
    inner = where.group(1) if where else ""
    text = _PATH.sub("", text)
    path = ".".join(part for part in (path, inner) if part)
    if unknown := _UNKNOWN.match(text):
        name = unknown.group(1)
        known = _fields_at(shape, inner)
        close = difflib.get_close_matches(name, known, 1)
        cure = f"did you mean {close[0]!r}?" if close else f"the known fields are {', '.join(known)}"
        problems.add(f"{path}.{name}" if path else name, f"unknown field; {cure}")
        return inner, name
    if missing := _MISSING.match(text):
        name = missing.group(1)
        problems.add(f"{path}.{name}" if path else name, "is missing; add this field")
        return inner, name
    expected = _EXPECTED.match(text)
    kinds = expected.group(1).split(" | ") if expected else []
    cure = f"; give {', or '.join(_GIVE[kind] for kind in kinds)}" if kinds and _GIVE.keys() >= set(kinds) else ""
    cure = f"; one of {', '.join(Relation)}" if inner.endswith(".relation") else cure
    if inner == "disruption_budget":
        cure = "; give a number such as 2, a share such as '10%', or fields such as max_down"
    problems.add(path or "file", text[0].lower() + text[1:] + cure)
    return inner, ""


def _steps(inner: str) -> list[str | int]:
    """Return the keys and indexes in the path `inner`. For `constraints[2].relation`, this is `["constraints", 2,
    "relation"]`.

    Parsing stops at `[...]`, which stands for any key of a mapping.
    """
    steps: list[str | int] = []
    for name, index in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", inner.partition("[...]")[0]):
        steps.append(name if name else int(index))
    return steps


def _removed(given: Any, steps: list[str | int]) -> bool:
    """Remove the part of `given` at the path `steps` (keys and indexes). Return whether there was such a part."""
    try:
        for step in steps[:-1]:
            given = given[step]
        del given[steps[-1]]
    except (LookupError, TypeError):
        return False
    return True


def _fields_at(shape: type[msgspec.Struct], inner: str) -> list[str]:
    """Return the names of the fields of the struct at the path `inner` in `shape`. A path is for example `health` or
    `constraints[2]`.
    """
    for part in [part for part in re.sub(r"\[.*?\]", "", inner).split(".") if part]:
        for field in msgspec.structs.fields(shape):
            if field.encode_name == part and (nested := _struct_in(field.type)) is not None:
                shape = nested
    return [field.encode_name for field in msgspec.structs.fields(shape)]


def _struct_in(annotation: Any) -> type[msgspec.Struct] | None:
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None
