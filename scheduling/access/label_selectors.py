"""Label selectors, such as `app=shop,track!=canary,tier in (web,api)`. Pure.

    text ─► conditions, separated by commas outside of parentheses ─► LabelCondition each; all of them must hold

This is the only parser of selectors. REST, `borgctl` and pages use it for jobs, tasks, machines, cron jobs and
workflows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from quota.vocabulary.errors import Rejected, invalid

MOST_CONDITIONS = 20
MOST_VALUES = 50
MOST_LETTERS = 4_000
_LONGEST_VALUE = 255
_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?"
_AMONG = re.compile(rf"({_KEY})\s+(in|notin|not\s+in)\s*\((.*)\)", re.DOTALL)
_COMPARED = re.compile(rf"({_KEY})\s*(!=|==?)\s*(.{{0,255}})", re.DOTALL)
_PRESENT = re.compile(rf"(!?)\s*({_KEY})")
_BEFORE_VALUES = re.compile(rf"\s*{_KEY}\s+(?:in|notin|not\s+in)\s*")
_FORMS = "write key=value, key!=value, key in (a,b), key notin (a,b), key or !key"


class LabelTest(StrEnum):
    """What a condition asks of a label. `OTHER` and `ABSENT` also accept objects without the label."""

    EQUAL = "equal"
    OTHER = "other"
    PRESENT = "present"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class LabelCondition:
    """A condition on the label `key`. `values`: with `EQUAL`, the label must have one of them, and with `OTHER`, none
    of them; empty for `PRESENT` and `ABSENT`.
    """

    key: str
    test: LabelTest
    values: tuple[str, ...] = ()


def parse_selector(text: str, field: str = "selector") -> list[LabelCondition]:
    """Return the conditions of a selector. All of them must hold. An empty text has none.

    The conditions are separated by commas: `key=value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`, `key` (the
    object has the label) and `!key` (it does not have it). Raises `Rejected` for any other text; the error names the
    wrong part and its place. `field`: the name of the wrong field in the error.
    """
    if len(text) > MOST_LETTERS:
        raise invalid(field, f"{len(text)} characters are too many; give at most {MOST_LETTERS}")
    found: list[LabelCondition] = []
    for place, part in _parts(text, field) if text.strip() else ():
        if among := _AMONG.fullmatch(part):
            key, word, values = among.groups()
            test = LabelTest.EQUAL if word == "in" else LabelTest.OTHER
            found.append(LabelCondition(key, test, _values(values, part, place, field)))
        elif compared := _COMPARED.fullmatch(part):
            key, sign, value = compared.groups()
            found.append(LabelCondition(key, LabelTest.OTHER if sign == "!=" else LabelTest.EQUAL, (value,)))
        elif present := _PRESENT.fullmatch(part):
            found.append(LabelCondition(present[2], LabelTest.ABSENT if present[1] else LabelTest.PRESENT))
        else:
            raise _wrong(field, part, place, f"it is not a condition on a label; {_FORMS}")
    if len(found) > MOST_CONDITIONS:
        raise invalid(field, f"{len(found)} conditions are too many; give at most {MOST_CONDITIONS}")
    return found


def _parts(text: str, field: str) -> Iterator[tuple[int, str]]:
    """Yield each condition with the place of its first character, which counts from 1."""
    start, opened = 0, None
    for place, letter in enumerate(f"{text},"):
        # Parentheses have a meaning only after `in`. A value such as `a=b(c` keeps its own.
        if letter == "(" and opened is None and _BEFORE_VALUES.fullmatch(text, start, place):
            opened = place
        elif letter == ")":
            opened = None
        elif letter == "," and (opened is None or place == len(text)):
            part = text[start:place]
            if opened is not None:
                raise _wrong(field, part.strip(), start + 1, "its ')' is missing; write key in (a,b)")
            yield start + 1 + len(part) - len(part.lstrip()), part.strip()
            start = place + 1


def _values(text: str, part: str, place: int, field: str) -> tuple[str, ...]:
    values = tuple(value.strip() for value in text.split(","))
    if not all(values):
        raise _wrong(field, part, place, "a value in its parentheses is empty; write key in (a,b)")
    if any(len(value) > _LONGEST_VALUE for value in values):
        raise _wrong(field, part, place, f"a value is longer than {_LONGEST_VALUE} characters")
    if len(values) > MOST_VALUES:
        raise _wrong(field, part, place, f"{len(values)} values are too many; give at most {MOST_VALUES}")
    return values


def _wrong(field: str, part: str, place: int, detail: str) -> Rejected:
    return invalid(field, f"{part[:80]!r} at character {place} of the selector: {detail}")
