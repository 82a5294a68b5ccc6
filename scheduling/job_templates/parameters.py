"""The parameters of a template: a subset of JSON Schema, the check of arguments, and their use in a job file. Pure.

parameters: {properties: {tasks: {type: integer, maximum: 100}}}
job:        {tasks: $(param.tasks), task: {command: [convert, $(param.file)]}}  ─ arguments ─►  a job file
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from scheduling.spec.field_errors import Problems

MAX_PARAMETERS = 64
MAX_TEXT = 4_096
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
# `$$` stands for `$` on the machine, so `$$(param.x)` is not a parameter.
_USE = re.compile(r"\$\$|\$\(param\.([^()]*)\)")
_MAX_NUMBER = 2**53
Value = str | int | float | bool


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """One parameter, as JSON Schema describes a property. Without `default`, an argument is required."""

    type: Literal["string", "integer", "number", "boolean"]
    title: str = ""
    description: str = ""
    default: Value | None = None
    enum: list[Value] = []
    minimum: float | None = None
    maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None


class ParametersSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The parameters of a template: a JSON Schema of an object whose properties are scalars."""

    properties: dict[str, Parameter] = {}
    type: Literal["object"] = "object"
    required: list[str] = []
    additional_properties: Literal[False] = False

    def is_required(self, name: str) -> bool:
        return name in self.required or self.properties[name].default is None


def check_schema(schema: ParametersSchema, job: Mapping[str, Any], problems: Problems) -> None:
    """Add a problem for each parameter that is wrong, is used in `job` without a description, or is not used."""
    problems.count("parameters.properties", schema.properties, MAX_PARAMETERS, "parameters")
    used = uses(job)
    for name, parameter in schema.properties.items():
        path = f"parameters.properties.{name}"
        if not _NAME.fullmatch(name):
            problems.add(path, f"{name!r} is not a name; use lower-case letters, digits and _, a letter first")
        elif name not in used:
            problems.add(path, f"the job does not use it; write $(param.{name}) in the job, or remove the parameter")
        problems.text(f"{path}.title", parameter.title, 100)
        problems.text(f"{path}.description", parameter.description, 1_000)
        for index, value in enumerate(parameter.enum):
            _check(value, msgspec.structs.replace(parameter, enum=[]), problems, f"{path}.enum[{index}]")
        if parameter.default is not None:
            _check(parameter.default, parameter, problems, f"{path}.default")
    for name in sorted(used - schema.properties.keys()):
        problems.add(f"parameters.properties.{name}", f"the job uses $(param.{name}); describe this parameter")
    for index, name in enumerate(schema.required):
        if name not in schema.properties:
            problems.add(f"parameters.required[{index}]", f"{name[:64]!r} is not in parameters.properties; remove it")


def arguments(schema: ParametersSchema, given: Mapping[str, Any], problems: Problems) -> dict[str, Value]:
    """Return the value of each parameter. `given`: the arguments by name; a text such as `3` is accepted for a number.
    Add a problem for each argument that is missing, unknown or wrong.
    """
    for name in given:
        if name not in schema.properties:
            known = ", ".join(schema.properties) or "none"
            problems.add(f"parameters.{name}", f"there is no such parameter; the parameters are {known}")
    result: dict[str, Value] = {}
    for name, parameter in schema.properties.items():
        path = f"parameters.{name}"
        if name in given:
            value = _check(given[name], parameter, problems, path)
        elif schema.is_required(name):
            problems.add(path, f"is missing; give {_wanted(parameter)}")
            continue
        else:
            value = parameter.default
        if value is not None:
            result[name] = value
    return result


def uses(job: Any) -> set[str]:
    """Return the names of the parameters that a job file uses."""
    found: set[str] = set()
    _map_texts(job, lambda text: found.update(one[1] for one in _USE.finditer(text) if one[1] is not None))
    return found


def filled(job: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the job file with the values of its parameters. A text that consists of one parameter becomes its value,
    for example a number. Inside a longer text, the value becomes text.
    """

    def fill(text: str) -> Any:
        whole = _USE.fullmatch(text)
        if whole is not None and whole[1] is not None:
            return values[whole[1]]
        return _USE.sub(lambda one: one[0] if one[1] is None else _text(values[one[1]]), text)

    result: dict[str, Any] = _map_texts(job, fill)
    return result


def _map_texts(part: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(part, str):
        return change(part)
    if isinstance(part, Mapping):
        return {key: _map_texts(value, change) for key, value in part.items()}
    return [_map_texts(one, change) for one in part] if isinstance(part, list) else part


def _text(value: Value) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _check(given: Any, parameter: Parameter, problems: Problems, path: str) -> Value | None:
    """Return `given` as a value of the parameter, or None after a problem was added."""
    kind: Any = {"string": str, "integer": int, "number": float, "boolean": bool}[parameter.type]
    try:
        # A number is not a text, and `strict=False` would accept 1 for true.
        strict = not isinstance(given, str) or kind is str
        value: Value = msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError:
        problems.add(path, f"{str(given)[:64]!r} is not of type {parameter.type}; give {_wanted(parameter)}")
        return None
    fits = value in parameter.enum if parameter.enum else True
    if isinstance(value, str):
        fits = fits and (parameter.min_length or 0) <= len(value) <= min(parameter.max_length or MAX_TEXT, MAX_TEXT)
        if "$(" in value or "\x00" in value:
            problems.add(path, "contains $( or a NUL character, which an argument cannot contain; remove it")
            return None
    elif not isinstance(value, bool):
        low = -_MAX_NUMBER if parameter.minimum is None else parameter.minimum
        high = _MAX_NUMBER if parameter.maximum is None else parameter.maximum
        fits = fits and low <= value <= high
    if not fits:
        problems.add(path, f"{str(value)[:64]!r} is not allowed; give {_wanted(parameter)}")
        return None
    return value


def _wanted(parameter: Parameter) -> str:
    if parameter.enum:
        return "one of " + ", ".join(_text(one) for one in parameter.enum[:20])
    if parameter.type == "boolean":
        return "true or false"
    if parameter.type == "string":
        low, high = parameter.min_length or 0, min(parameter.max_length or MAX_TEXT, MAX_TEXT)
        return f"a text of {low} to {high} characters"
    bounds = [f"at least {parameter.minimum:g}"] if parameter.minimum is not None else []
    bounds += [f"at most {parameter.maximum:g}"] if parameter.maximum is not None else []
    return " and ".join(["a whole number" if parameter.type == "integer" else "a number", *bounds])
