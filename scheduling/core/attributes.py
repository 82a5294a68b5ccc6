"""Machine attributes as dictionary-coded columns, and the constraints over them (§2.3, §3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from scheduling.core.requirement import Constraint, Relation

_ABSENT = 0  # the code of "this machine has no such attribute"


class Attributes:
    """One column of codes per attribute, over machine slots. A constraint is judged once per distinct value."""

    def __init__(self) -> None:
        self._size = 0
        self._columns: dict[str, NDArray[np.int32]] = {}
        self._codes: dict[str, dict[str, int]] = {}
        self._rows: dict[int, Mapping[str, str]] = {}

    def grow(self, size: int) -> None:
        self._size = size
        for name, column in self._columns.items():
            self._columns[name] = np.concatenate([column, np.zeros(size - len(column), np.int32)])

    def set(self, slot: int, values: Mapping[str, str]) -> None:
        """Replace all attributes of a machine."""
        for name in self._rows.get(slot, {}):
            self._columns[name][slot] = _ABSENT
        self._rows[slot] = dict(values)
        for name, value in values.items():
            if name not in self._columns:
                self._columns[name] = np.zeros(self._size, np.int32)
                self._codes[name] = {}
            codes = self._codes[name]
            self._columns[name][slot] = codes.setdefault(value, len(codes) + 1)

    def of(self, slot: int) -> Mapping[str, str]:
        return self._rows.get(slot, {})

    def satisfied(self, constraint: Constraint) -> NDArray[np.bool_]:
        """bool[M]: where the constraint holds."""
        column = self._columns.get(constraint.attribute)
        if column is None:
            return np.full(self._size, holds(constraint, None))
        codes = self._codes[constraint.attribute]
        verdicts = np.empty(len(codes) + 1, np.bool_)
        verdicts[_ABSENT] = holds(constraint, None)
        for value, code in codes.items():
            verdicts[code] = holds(constraint, value)
        return verdicts[column]


def holds(constraint: Constraint, value: str | None) -> bool:
    """Whether a machine whose attribute is `value` (None: it has none) satisfies the constraint."""
    relation = constraint.relation
    if relation is Relation.PRESENT:
        return value is not None
    if relation is Relation.ABSENT:
        return value is None
    if value is None:
        return relation is Relation.NOT_EQUAL
    return _COMPARE[relation](*_comparable(value, constraint.value))


_COMPARE: dict[Relation, Callable[[float | str, float | str], bool]] = {
    Relation.EQUAL: lambda a, b: a == b,
    Relation.NOT_EQUAL: lambda a, b: a != b,
    Relation.LESS: lambda a, b: a < b,  # type: ignore[operator]
    Relation.GREATER: lambda a, b: a > b,  # type: ignore[operator]
    Relation.AT_MOST: lambda a, b: a <= b,  # type: ignore[operator]
    Relation.AT_LEAST: lambda a, b: a >= b,  # type: ignore[operator]
}


def _comparable(left: str, right: str) -> tuple[float | str, float | str]:
    """Both as numbers when both are numbers, else both as text."""
    try:
        return float(left), float(right)
    except ValueError:
        return left, right
