"""Column types and constraints that several models share."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.core.validators import RegexValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

DNS_LABEL = r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z"

dns_label = RegexValidator(
    DNS_LABEL, _("Use a DNS label: lower-case letters, digits and hyphens, first a letter, at most 63 characters.")
)


class DnsLabelField(models.CharField):  # type: ignore[type-arg]
    """A column for names that are one label of a DNS name (§2.6)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 63)
        kwargs.setdefault("validators", [dns_label])
        super().__init__(*args, **kwargs)


class VectorField(ArrayField):  # type: ignore[type-arg]
    """A column for a vector: an array of 64-bit integers, one per resource of `quota.vocabulary.resources.AXIS` and
    then one per named resource of the cell.
    """

    def __init__(self, verbose_name: Any = None, **kwargs: Any) -> None:
        kwargs.pop("base_field", None)  # given when the field is copied
        super().__init__(models.BigIntegerField(), verbose_name=verbose_name, **kwargs)

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        kwargs.pop("base_field", None)
        return name, path, args, kwargs


class WideVectorField(VectorField):
    """A column for exact sums beyond 64 bits, such as bytes times seconds. Values are read as `Decimal`."""

    DIGITS = 30

    def __init__(self, verbose_name: Any = None, **kwargs: Any) -> None:
        super().__init__(verbose_name, **kwargs)
        self.base_field = models.DecimalField(max_digits=self.DIGITS, decimal_places=0)


class AllAtLeastZero(models.Func):
    """The SQL condition `0 <= ALL(vector)`, for CHECK constraints."""

    template = "0 <= ALL(%(expressions)s)"
    output_field = models.BooleanField()


def never_negative(field: str, name: str) -> models.CheckConstraint:
    return models.CheckConstraint(condition=AllAtLeastZero(models.F(field)), name=name)
