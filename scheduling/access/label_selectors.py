"""Label selectors, such as `app=shop,track!=canary`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from quota.vocabulary.errors import invalid

MOST_CONDITIONS = 20
_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?"
_COMPARED = re.compile(rf"({_KEY})\s*(!=|==?)\s*(.{{0,255}})", re.DOTALL)
_PRESENT = re.compile(rf"(!?)\s*({_KEY})")


class LabelTest(StrEnum):
    """What a condition asks of a label. `OTHER` and `ABSENT` also accept jobs without the label."""

    EQUAL = "equal"
    OTHER = "other"
    PRESENT = "present"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class LabelCondition:
    """A condition on the label `key`. `value`: the value to compare with; "" for `PRESENT` and `ABSENT`."""

    key: str
    test: LabelTest
    value: str = ""


def parse_selector(text: str, field: str = "selector") -> list[LabelCondition]:
    """Return the conditions of a selector. All of them must hold. An empty text has none.

    The conditions are separated by commas: `key=value`, `key!=value`, `key` (the job has the label) and `!key` (it does
    not have it). Raises `Rejected` for any other text. `field`: the name of the wrong field in the error.
    """
    found: list[LabelCondition] = []
    for part in text.split(",") if text.strip() else ():
        part = part.strip()
        if compared := _COMPARED.fullmatch(part):
            key, sign, value = compared.groups()
            found.append(LabelCondition(key, LabelTest.OTHER if sign == "!=" else LabelTest.EQUAL, value))
        elif present := _PRESENT.fullmatch(part):
            found.append(LabelCondition(present[2], LabelTest.ABSENT if present[1] else LabelTest.PRESENT))
        else:
            detail = f"{part[:80]!r} is not a condition on a label; write key=value, key!=value, key or !key"
            raise invalid(field, detail)
    if len(found) > MOST_CONDITIONS:
        raise invalid(field, f"{len(found)} conditions are too many; give at most {MOST_CONDITIONS}")
    return found
