"""Fast serializers for answers. The fields of a serializer are built once per class, not once per answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any

from rest_framework import serializers

Shown = Callable[["ReadSerializer", Any], Any]

# Values of these fields go to the JSON encoder as they are.
_PLAIN = (serializers.IntegerField, serializers.CharField, serializers.BooleanField, serializers.DateTimeField)


class ContextField(serializers.Field[Any, Any, Any, Any]):
    """A field whose value also depends on the context of the serializer, not only on the row."""

    def shown(self, value: Any, context: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def to_representation(self, value: Any) -> Any:
        return self.shown(value, self.context)


class ReadSerializer(serializers.ModelSerializer[Any]):
    """A serializer for answers only. Among its fields, only a `ContextField` may depend on the context."""

    def to_representation(self, instance: Any) -> dict[str, Any]:
        return {name: shown(self, instance) for name, shown in _fields_of(type(self))}


@cache
def _fields_of(serializer: type[ReadSerializer]) -> list[tuple[str, Shown]]:
    """Return the name of each field, and the function that returns its value for a row."""
    return [(name, _shown(field)) for name, field in serializer().fields.items()]


def _shown(field: serializers.Field[Any, Any, Any, Any]) -> Shown:
    if isinstance(field, serializers.SerializerMethodField):
        method = field.method_name
        assert method is not None
        return lambda serializer, row: getattr(serializer, method)(row)
    read = attrgetter(".".join(field.source_attrs))

    def value_of(row: Any) -> Any:
        try:
            return read(row)
        except AttributeError:  # the default of a field whose source is absent
            return field.get_attribute(row)

    if isinstance(field, ContextField):
        return lambda serializer, row: field.shown(value_of(row), serializer.context)
    if isinstance(field, _PLAIN):
        return lambda serializer, row: value_of(row)
    convert = field.to_representation

    def converted(serializer: ReadSerializer, row: Any) -> Any:
        value = value_of(row)
        return None if value is None else convert(value)

    return converted
