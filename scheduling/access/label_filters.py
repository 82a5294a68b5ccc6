"""Restricts lists to the objects whose labels match. The labels of a task are those of its job, and the labels of a
machine are its attributes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from django.db.models import F, Func, Model, Q, QuerySet, TextField, Value
from django.db.models.functions import Coalesce, NullIf

from quota.vocabulary.errors import invalid
from scheduling.access.label_selectors import LabelCondition, LabelTest, parse_selector
from scheduling.models import Machine

M = TypeVar("M", bound=Model)
# Facts of machines that count as attributes, as in constraints of jobs. An attribute of the same name comes first.
MACHINE_COLUMNS = ("hostname", "platform", "rack", "power_domain")


def with_labels(rows: QuerySet[M], labels: Iterable[str], selector: str = "") -> QuerySet[M]:
    """Return the jobs that have all `labels`, each written as `key=value`, and match a label selector. `rows`: jobs, or
    other rows with labels. Raises `Rejected` if a label or the selector is not valid.
    """
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals:
            raise invalid("label", f"the label {label!r} has no '='; write it as key=value")
        rows = rows.filter(labels__contains={key: value})
    return selected(rows, selector)


def selected(rows: QuerySet[M], selector: str, column: str = "labels") -> QuerySet[M]:
    """Return the rows that match a label selector. `column`: the JSON column with the labels. Raises `Rejected` if the
    selector is not valid.
    """
    for number, condition in enumerate(parse_selector(selector)):
        rows = _where(rows, condition, number, _label(column, condition.key))
    return rows


def machines_selected(rows: QuerySet[Machine], selector: str) -> QuerySet[Machine]:
    """Return the machines whose attributes match a selector. Their host name, platform, rack and power domain count as
    attributes, as in the constraints of jobs. Raises `Rejected` if the selector is not valid.
    """
    for number, condition in enumerate(parse_selector(selector)):
        value: Any = _label("attributes", condition.key)
        if condition.key in MACHINE_COLUMNS:
            value = Coalesce(value, NullIf(F(condition.key), Value("")), output_field=TextField())
        rows = _where(rows, condition, number, value)
    return rows


def _label(column: str, key: str) -> Func:
    """Return the database expression for the label `key`. Django's key transforms would take digits for a place in an
    array.
    """
    return Func(F(column), Value(key), function="jsonb_extract_path_text", output_field=TextField())


def _where(rows: QuerySet[M], condition: LabelCondition, number: int, value: Any) -> QuerySet[M]:
    """Return the rows for which the condition holds. `number`: the place of the condition, for a name in SQL. `value`:
    the database expression for the value of the label; it is null for rows without the label.
    """
    name = f"label_{number}"
    rows = rows.alias(**{name: value})
    match condition.test:
        case LabelTest.EQUAL:
            return rows.filter(**{f"{name}__in": condition.values})
        case LabelTest.OTHER:
            return rows.filter(~Q(**{f"{name}__in": condition.values}) | Q(**{f"{name}__isnull": True}))
        case LabelTest.PRESENT:
            return rows.filter(**{f"{name}__isnull": False})
        case LabelTest.ABSENT:
            return rows.filter(**{f"{name}__isnull": True})
