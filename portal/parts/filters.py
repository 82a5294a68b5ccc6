"""Filters of a list: a form that sets parameters of the URL, and a small label (a chip) for each filter that restricts
the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from portal.parts.paging import FIRST_PAGE, Changes


@dataclass(frozen=True, slots=True)
class FilterField:
    """A field of the form with the filters of a list. The functions `search`, `choice`, `day` and `check` create
    fields.

    `kind`: the type of the field: `search`, `choice`, `date` or `checkbox`. `value`: the chosen value. `default`: the
    value that applies without the URL parameter. `choices`: pairs of a value and its title. `problem`: why the value is
    wrong.
    """

    kind: str
    name: str
    label: str
    value: str
    default: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    placeholder: str = ""
    problem: str = ""

    @property
    def title(self) -> str:
        """Return the chosen value as the form shows it."""
        return dict(self.choices).get(self.value, self.value)

    @property
    def in_force(self) -> bool:
        """Return whether the field restricts the list."""
        return self.value != self.default


@dataclass(frozen=True, slots=True)
class FilterChip:
    """A label of a filter that restricts the list, such as `State: dead`. `changes`: the changes of URL parameters that
    remove the filter.
    """

    text: str
    changes: Changes


@dataclass(frozen=True, slots=True)
class Filters:
    """The form with the filters of a list.

    `submit`: the title of the button. `kept`: URL parameters that the form keeps, such as the order of the rows.
    """

    fields: tuple[FilterField, ...]
    submit: str
    kept: Mapping[str, str] = field(default_factory=dict)

    @property
    def chips(self) -> list[FilterChip]:
        """Return a label for each filter that restricts the list."""
        return [
            FilterChip(
                one.label if one.kind == "checkbox" else f"{one.label}: {one.title}", {**FIRST_PAGE, one.name: None}
            )
            for one in self.fields
            if one.in_force
        ]

    @property
    def cleared(self) -> Changes:
        """Return the changes of URL parameters that remove all filters."""
        return {**FIRST_PAGE, **{one.name: None for one in self.fields}}


def search(name: str, label: str, value: str, *, placeholder: str = "", problem: str = "") -> FilterField:
    """Return a field of a filter form in which the user enters a text."""
    return FilterField("search", name, label, value, placeholder=placeholder, problem=problem)


def choice(
    name: str,
    label: str,
    value: str,
    choices: Iterable[str | tuple[str, str]],
    *,
    everything: str | None = None,
    default: str = "",
) -> FilterField:
    """Return a field of a filter form with a list of choices.

    `choices`: values, or pairs of a value and its title. `everything`: the title of the choice that does not restrict
    the list, whose value is "". `default`: the choice that applies without the URL parameter.
    """
    pairs = [(one, one) if isinstance(one, str) else one for one in choices]
    if everything is not None:
        pairs.insert(0, ("", everything))
    return FilterField("choice", name, label, value, default, tuple(pairs))


def day(name: str, label: str, value: str, *, problem: str = "") -> FilterField:
    """Return a field of a filter form in which the user enters a day, such as 2026-11-27."""
    return FilterField("date", name, label, value, problem=problem)


def check(name: str, label: str, value: bool) -> FilterField:
    """Return a field of a filter form that the user can switch on. The URL parameter is `yes` if the field is on."""
    return FilterField("checkbox", name, label, "yes" if value else "")
