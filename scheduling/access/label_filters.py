"""Restricts lists of jobs to those whose labels match."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from django.db.models import Model, QuerySet

from quota.vocabulary.errors import invalid
from scheduling.access.label_selectors import LabelTest, parse_selector

M = TypeVar("M", bound=Model)


def with_labels(rows: QuerySet[M], labels: Iterable[str], selector: str = "") -> QuerySet[M]:
    """Return the jobs that have all `labels`, each written as `key=value`, and match a label selector. `rows`: jobs, or
    index entries of archived jobs. Raises `Rejected` if a label or the selector is not valid.
    """
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals:
            raise invalid("label", f"the label {label!r} has no '='; write it as key=value")
        rows = rows.filter(labels__contains={key: value})
    for condition in parse_selector(selector):
        match condition.test:
            case LabelTest.EQUAL:
                rows = rows.filter(labels__contains={condition.key: condition.value})
            case LabelTest.OTHER:
                rows = rows.exclude(labels__contains={condition.key: condition.value})
            case LabelTest.PRESENT:
                rows = rows.filter(labels__has_key=condition.key)
            case LabelTest.ABSENT:
                rows = rows.exclude(labels__has_key=condition.key)
    return rows
