"""The attributes of machines. Each value is stored as a number, its code. A constraint is evaluated once for each
distinct value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling.core.vocabulary.requirement import Constraint, Relation

_ORDER: dict[Relation, Callable[[Any, Any], bool]] = {
    Relation.LESS: operator.lt,
    Relation.GREATER: operator.gt,
    Relation.AT_MOST: operator.le,
    Relation.AT_LEAST: operator.ge,
}


def holds(constraint: Constraint, value: str | None) -> bool:
    """Return whether the value of an attribute satisfies the constraint. `value`: None if the machine lacks the
    attribute.
    """
    relation = constraint.relation
    if value is None:
        return relation in (Relation.ABSENT, Relation.NOT_EQUAL)
    if relation is Relation.PRESENT:
        return True
    if relation is Relation.ABSENT:
        return False
    if relation is Relation.EQUAL:
        return value == constraint.value
    if relation is Relation.NOT_EQUAL:
        return value != constraint.value
    left, right = _number(value), _number(constraint.value)
    if left is not None and right is not None:
        return _ORDER[relation](left, right)
    return _ORDER[relation](value, constraint.value)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number else None  # "nan" is text


# Answers are forgotten when there are more: each is an array over all machines.
MOST_MASKS = 1024


class Attributes:
    """The attributes of all machines. Each attribute is one column: `codes[name]: int32[M]` holds the code of the
    value for each machine slot, and -1 where a machine lacks the attribute.

    `version` increases with every change of an attribute.
    """

    def __init__(self) -> None:
        self.version = 0
        self._size = 0
        self._codes: dict[str, NDArray[np.int32]] = {}
        self._values: dict[str, dict[str, int]] = {}
        self._names: dict[str, list[str]] = {}
        self._masks: dict[Constraint, NDArray[np.bool_]] = {}

    def grow(self, size: int) -> None:
        """Grow the columns to `size` machines."""
        for name, codes in self._codes.items():
            larger = np.full(size, -1, dtype=np.int32)
            larger[: self._size] = codes
            self._codes[name] = larger
        self._size = size
        self._changed()

    def set(self, slot: int, attributes: Mapping[str, str]) -> None:
        """Replace all attributes of the machine in `slot` by `attributes`."""
        for name in attributes.keys() - self._codes.keys():
            self._codes[name] = np.full(self._size, -1, dtype=np.int32)
            self._values[name], self._names[name] = {}, []
        changed = False
        for name, codes in self._codes.items():
            value = attributes.get(name)
            values = self._values[name]
            code = -1 if value is None else values.setdefault(value, len(values))
            if len(values) > len(self._names[name]):
                self._names[name].append(str(value))
            if codes[slot] != code:
                codes[slot] = code
                changed = True
        if changed:
            self._changed()

    def of(self, slot: int) -> dict[str, str]:
        return {name: self._names[name][codes[slot]] for name, codes in self._codes.items() if codes[slot] >= 0}

    def columns(self, slots: NDArray[np.int32]) -> dict[str, tuple[NDArray[np.int32], list[str]]]:
        """Return two items for each attribute name: an array with the code of each machine in `slots` (-1: the machine
        lacks the attribute), and the value of each code.
        """
        return {name: (codes[slots], self._names[name]) for name, codes in self._codes.items()}

    @classmethod
    def of_columns(cls, columns: Mapping[str, tuple[NDArray[np.int32], list[str]]], size: int) -> Attributes:
        """Return `Attributes` of `size` machines that use the given columns. The result is read-only."""
        attributes = cls()
        attributes._size = size
        attributes._codes = {name: codes for name, (codes, _) in columns.items()}
        attributes._names = {name: values for name, (_, values) in columns.items()}
        return attributes

    def values_on(self, name: str, slots: NDArray[np.int32]) -> dict[str, int]:
        """Count the machines by value of the attribute. Machines that lack it are not counted."""
        codes = self._codes.get(name)
        if codes is None:
            return {}
        numbers = np.bincount(codes[slots] + 1)
        return {self._names[name][code]: int(numbers[code + 1]) for code in np.flatnonzero(numbers[1:])}

    def mask(self, constraint: Constraint) -> NDArray[np.bool_]:
        """Return bool[M]: which machines satisfy the constraint. Callers must not write to this array."""
        known = self._masks.get(constraint)
        if known is None:
            if len(self._masks) >= MOST_MASKS:
                self._masks.clear()
            known = self._masks[constraint] = self._evaluate(constraint)
        return known

    def _evaluate(self, constraint: Constraint) -> NDArray[np.bool_]:
        codes = self._codes.get(constraint.attribute)
        if codes is None:
            return np.full(self._size, holds(constraint, None), dtype=np.bool_)
        truths = [holds(constraint, value) for value in self._names[constraint.attribute]]
        truths.append(holds(constraint, None))  # code -1 is the last element
        return np.array(truths, dtype=np.bool_)[codes]

    def _changed(self) -> None:
        self.version += 1
        self._masks.clear()
