"""Serializer fields that several views share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from quota.serializers import ContextField
from quota.vocabulary.resources import as_mapping
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.core.vocabulary.states import MachineStatus, TaskState
from scheduling.models import Update
from scheduling.models.machines import REMOVED
from scheduling.services.outcomes import ServiceState
from scheduling.spec.job_spec import KINDS


class Quantities(ContextField):
    """A resource vector, shown as an object: CPU in millicores, RAM and disk in bytes."""

    def shown(self, value: list[int], context: Mapping[str, Any]) -> dict[str, int]:
        return as_mapping(value, extra=context.get("extra", ()))


Quantities = extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})(Quantities)  # type: ignore[misc]


def _one_of(*values: str | None) -> type[serializers.CharField]:
    """Return the class of a text field that allows only the given values. If `None` is one of the values, the field can
    be null.
    """
    field = type("OneOf", (serializers.CharField,), {})
    kinds = ["string", "null"] if None in values else "string"
    return extend_schema_field({"type": kinds, "oneOf": [{"const": value} for value in values]})(field)


LifeField = _one_of(*(state.value for state in TaskState))  # jobs and tasks have the same states
JobHealthField = _one_of(*(health.value for health in JobHealth))
NullableJobHealthField = _one_of(*(health.value for health in JobHealth), None)
MachineStateField = _one_of(*(state.value for state in MachineStatus), REMOVED)
UpdateStateField = _one_of(Update.OPEN, Update.DONE, Update.SUPERSEDED, Update.STOPPED, Update.ROLLED_BACK)
JobKindField = _one_of(*KINDS.values())
ServiceStateField = _one_of(*(state.value for state in ServiceState))


class Texts(serializers.DictField):
    child = serializers.CharField()
