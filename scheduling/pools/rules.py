"""Which attributes a machine has, and to which pool it belongs. Pure.

reported by the Borglet ─┐
set by SREs, these win ──┼─► attributes of the machine ─► constraints of jobs, selectors, pools
`pool`, from its pool ───┘
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduling.access.label_selectors import LabelCondition, LabelTest, parse_selector
from scheduling.core.vocabulary.requirement import POOL, PROTOCOL

# An SRE may set so many attributes of a machine.
MOST_SET = 64
MOST_TEXT = 255
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
# Facts of machines that selectors and constraints read like attributes.
FACTS = ("hostname", "platform", "rack", "power_domain")
# The cell or the Borglet depends on these attributes: a wrong value could break isolation, or hide a fault.
_OWN = (*FACTS, "runtime", "secrets", "cores", "architecture", "kernel", PROTOCOL)
_OWN_PREFIXES = ("borglet.", "capacity.", "isolation.")


@dataclass(frozen=True, slots=True)
class PoolSelector:
    """The name of a pool, and the conditions for machines that belong to it without an assignment."""

    pool: str
    conditions: tuple[LabelCondition, ...]

    @classmethod
    def parse(cls, pool: str, text: str) -> PoolSelector:
        return cls(pool, tuple(parse_selector(text)))


def wrong_attributes(values: Mapping[str, str], removed: Sequence[str]) -> dict[str, str]:
    """Return what is wrong with attributes that an SRE sets or removes, by field."""
    problems = {}
    for field, name in (*(("set", one) for one in values), *(("unset", one) for one in removed)):
        key = f"{field}.{name[:63]}"
        if name == POOL:
            problems[key] = "the attribute `pool` cannot be set; put the machine into a pool instead"
        elif name in _OWN or name.startswith(_OWN_PREFIXES):
            problems[key] = "the cell or the Borglet sets this attribute itself; choose another name"
        elif not _NAME.fullmatch(name):
            problems[key] = (
                "it is not a name of an attribute; use up to 128 letters, digits, '.', '_', '/' and '-', with a letter"
                " or digit first and last"
            )
    for name, value in values.items():
        if not 1 <= len(value) <= MOST_TEXT or "\x00" in value:
            problems.setdefault(f"set.{name[:63]}", f"give a value of 1 to {MOST_TEXT} characters, without NUL")
    for name in values.keys() & set(removed):
        problems.setdefault(f"unset.{name[:63]}", "it is both set and removed; do only one of these")
    for field, number in (("set", len(values)), ("unset", len(removed))):
        if number > MOST_SET:
            return {field: f"{number} attributes are too many; give at most {MOST_SET}"}
    if not values and not removed:
        problems["set"] = "no attribute is given; name at least one to set or to remove"
    return problems


def reported(attributes: Mapping[str, str], own: Mapping[str, str], hidden: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes that the Borglet has reported, from those of the machine. `own`: those that SREs have set.
    `hidden`: the reported values that they replace.
    """
    return {name: value for name, value in attributes.items() if name not in own and name != POOL} | dict(hidden)


def merged(found: Mapping[str, str], own: Mapping[str, str], pool: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the attributes of a machine, and the reported values that they hide. `found`: reported by the Borglet; it
    cannot report its pool. `own`: set by SREs.
    """
    attributes = {name: value for name, value in found.items() if name != POOL} | dict(own)
    if pool:
        attributes[POOL] = pool
    return attributes, {name: found[name] for name in own if name in found}


def pool_for(assigned: str, selectors: Iterable[PoolSelector], labels: Mapping[str, str]) -> str:
    """Return the name of the pool of a machine, or "". An assignment by a person wins. Of several pools whose selectors
    match, the first one by name wins. `labels`: the attributes that SREs have set, and the facts
    that were accepted when the machine joined.
    """
    if assigned:
        return assigned
    return min((one.pool for one in selectors if matches(one.conditions, labels)), default="")


def matches(conditions: Iterable[LabelCondition], labels: Mapping[str, str]) -> bool:
    """Return whether the labels satisfy all conditions of a selector, as in `scheduling.access.label_filters`."""
    return all(_holds(one, labels.get(one.key)) for one in conditions)


def _holds(condition: LabelCondition, value: str | None) -> bool:
    match condition.test:
        case LabelTest.EQUAL:
            return value is not None and value in condition.values
        case LabelTest.OTHER:
            return value is None or value not in condition.values
        case LabelTest.PRESENT:
            return value is not None
        case LabelTest.ABSENT:
            return value is None
