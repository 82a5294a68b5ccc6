"""Conditions at which a simulation stops, such as `pending > 100 and hours >= 24`.

condition:  comparison, or comparisons joined by `and` or by `or` (`and` binds more tightly)
comparison: NAME OPERATOR NUMBER, with one of the operators > >= < <= = !=
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduling.core.vocabulary.states import EvictionCause
from scheduling.simulator.simulation import Simulation

Measure = Callable[[Simulation], float]


def _evictions(cause: EvictionCause | None) -> Measure:
    def measure(simulation: Simulation) -> float:
        counted = simulation.cell.keeper.figures.evictions
        return sum(number for (name, _), number in counted.items() if cause is None or name == cause.value)

    return measure


MEASURES: dict[str, Measure] = {
    "pending": lambda s: s.cell.pending,
    "pending_prod": lambda s: s.cell.keeper.pending[True],
    "running": lambda s: s.cell.running,
    "placements": lambda s: s.cell.keeper.figures.placed,
    "evictions": _evictions(None),
    "preemptions": _evictions(EvictionCause.PREEMPTION),
    "out_of_memory": _evictions(EvictionCause.OUT_OF_RESOURCES),
    "failures": lambda s: s.cell.keeper.figures.failures,
    "machines_used": lambda s: float(np.count_nonzero(s.state.machines.tasks)),
    "passes": lambda s: s.passes,
    "events": lambda s: s.cell.journal.count,
    "hours": lambda s: s.now / 3600,
}
"""The names that a condition may use, and what each of them measures."""

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}
_TOKEN = re.compile(r"\s*(?:([a-z_]+)|(>=|<=|!=|==?|>|<)|(-?[0-9]+(?:\.[0-9]+)?))")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of a condition."""

    name: str
    sign: str
    number: float

    def holds(self, simulation: Simulation) -> bool:
        return _OPERATORS[self.sign](MEASURES[self.name](simulation), self.number)


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition. It holds if all comparisons of one of the `alternatives` hold."""

    alternatives: tuple[tuple[Comparison, ...], ...]

    def holds(self, simulation: Simulation) -> bool:
        return any(all(one.holds(simulation) for one in every) for every in self.alternatives)


def parse(text: str) -> Condition:
    """Return the condition that `text` describes. Raises `ValueError` that says what is wrong and what is allowed."""
    tokens = _tokens(text)
    alternatives: list[tuple[Comparison, ...]] = []
    current: list[Comparison] = []
    at = 0
    while True:
        current.append(_comparison(text, tokens[at : at + 3]))
        at += 3
        joint = tokens[at] if at < len(tokens) else ""
        if joint == "and":
            at += 1
            continue
        alternatives.append(tuple(current))
        current = []
        if not joint:
            return Condition(tuple(alternatives))
        if joint != "or":
            raise _wrong(text, f"{joint!r} follows a comparison; write `and` or `or` instead")
        at += 1


def _comparison(text: str, tokens: list[str]) -> Comparison:
    if len(tokens) < 3:
        raise _wrong(text, "a comparison is incomplete; write NAME OPERATOR NUMBER")
    name, sign, number = tokens
    if name not in MEASURES:
        raise _wrong(text, f"the name {name!r} is unknown; the names are {', '.join(MEASURES)}")
    sign = "=" if sign == "==" else sign
    if sign not in _OPERATORS:
        raise _wrong(text, f"{sign!r} follows {name}; write one of {' '.join(_OPERATORS)} instead")
    try:
        return Comparison(name, sign, float(number))
    except ValueError:
        raise _wrong(text, f"{number!r} is not a number; write a number such as 100 after the operator") from None


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _wrong(
                text, f"{text[at:].strip()[:10]!r} cannot be read; write comparisons with `and` or `or` between them"
            )
        found.append(next(part for part in match.groups() if part is not None))
        at = match.end()
    return found


def _wrong(text: str, what: str) -> ValueError:
    return ValueError(f"condition {text!r}: {what}. An example is: pending > 100 and hours >= 24")
