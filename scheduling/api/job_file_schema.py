"""The OpenAPI schema of a job file, generated from the structs that parse job files."""

from __future__ import annotations

import inspect
from typing import Any, cast

import msgspec
from drf_spectacular.extensions import OpenApiSerializerExtension
from rest_framework import serializers

from scheduling.core.vocabulary.states import JobGoal
from scheduling.spec.field_descriptions import FIELD_TEXTS
from scheduling.spec.job_spec import KINDS
from scheduling.spec.schema import JobFile, TaskFile

_REF = "#/$defs/"
_ORDER = {name: position for position, name in enumerate(FIELD_TEXTS)}


class JobFileSerializer(serializers.Serializer[Any]):
    """A normalized job file. Its schema has the fields of `scheduling.spec.schema.JobFile`."""

    def to_representation(self, instance: dict[str, Any]) -> dict[str, Any]:
        return instance


class _JobFileSchema(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    target_class = JobFileSerializer

    def get_name(self, auto_schema: object, direction: str) -> str:
        return "JobFile"

    def map_serializer(self, auto_schema: object, direction: str) -> dict[str, Any]:
        return schema()


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, with all references resolved."""
    (job, task), known = msgspec.json.schema_components((JobFile, TaskFile), ref_template=_REF + "{name}")
    whole = _inline(job, known)
    of_task = _inline(task, known)
    whole["description"] = "A job file, version borg/v1. The minimum is a name and a task with a command."
    whole["properties"]["task"] = of_task
    whole["properties"]["overrides"] = {"type": "object", "additionalProperties": {"type": "object"}}
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    quantity = {"type": ["integer", "number", "string"], "examples": ["500m", "64Mi", 2]}
    whole["properties"]["labels"] = texts
    goal = {"type": "string", "enum": [goal.value for goal in JobGoal]}
    whole["properties"]["after"] = {"type": "object", "additionalProperties": goal, "default": {}}
    whole["properties"]["kind"] = {"type": "string", "oneOf": [{"const": kind} for kind in KINDS], "default": "Job"}
    of_task["properties"]["env"] = texts
    of_task["properties"]["limit"] = {"type": "object", "additionalProperties": quantity}
    _describe(whole, "")
    return cast("dict[str, Any]", whole)


def _describe(node: dict[str, Any], prefix: str) -> None:
    """Add a description to each field of the schema `node`, and sort the fields in the order of the descriptions."""
    fields = node.get("properties", {})
    for name in sorted(fields, key=lambda name: _ORDER[prefix + name]):
        field = fields.pop(name)
        for part in (field, *field.get("anyOf", ())):
            _describe(part, f"{prefix}{name}.")
        fields[name] = {**field, "description": FIELD_TEXTS[prefix + name]}


def _inline(node: Any, known: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(part, known) for part in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(known[node["$ref"].removeprefix(_REF)], known)
    return {
        name: inspect.cleandoc(part) if name == "description" and isinstance(part, str) else _inline(part, known)
        for name, part in node.items()
        if name != "title"
    }
