"""The parameters of a template: a subset of JSON Schema, the check of arguments, and their use in a job file. Pure.

parameters: {properties: {tasks: {type: integer, maximum: 100}}}
job:        {tasks: $(param.tasks), task: {command: [convert, $(param.file)]}}  ─ arguments ─►  a job file
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from quota.vocabulary.resources import format_number
from scheduling.spec.field_errors import Problems

MAX_PARAMETERS = 64
MAX_CHOICES = 100
MAX_TEXT = 4_096
MAX_FILLED = 256 * 2**10  # bytes of a job with its arguments
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
# `$$(` stands for `$(` on the machine (`borglet.variables`), so `$$(param.x)` is not a parameter.
_USE = re.compile(r"\$\$\(|\$\(param\.([^()]*)\)")
# Fields whose values are texts in a job file. A number becomes text there.
_TEXT_FIELDS = ("command", "env", "labels")
_MAX_NUMBER = 2**53
_SHOWN_CHOICES = 20
Value = str | int | float | bool


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """One parameter, as JSON Schema describes a property. Without `default`, an argument is required."""

    type: Literal["string", "integer", "number", "boolean"]
    title: str | msgspec.UnsetType = msgspec.UNSET
    description: str | msgspec.UnsetType = msgspec.UNSET
    default: Value | msgspec.UnsetType = msgspec.UNSET
    enum: list[Value] | msgspec.UnsetType = msgspec.UNSET
    minimum: float | msgspec.UnsetType = msgspec.UNSET
    maximum: float | msgspec.UnsetType = msgspec.UNSET
    min_length: int | msgspec.UnsetType = msgspec.UNSET
    max_length: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def lengths(self) -> tuple[int, int]:
        """Return the least and the largest number of characters of a text."""
        most = MAX_TEXT if self.max_length is msgspec.UNSET else min(self.max_length, MAX_TEXT)
        return (0 if self.min_length is msgspec.UNSET else self.min_length), most

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest number."""
        low = -_MAX_NUMBER if self.minimum is msgspec.UNSET else self.minimum
        return low, (_MAX_NUMBER if self.maximum is msgspec.UNSET else self.maximum)

    @property
    def sample(self) -> Value:
        """Return a value that the parameter accepts, to check the job of a template."""
        if self.default is not msgspec.UNSET:
            return self.default
        if self.enum is not msgspec.UNSET and self.enum:
            return self.enum[0]
        if self.type == "boolean":
            return True
        if self.type == "string":
            return "x" * max(1, self.lengths[0])
        low, high = self.bounds
        number = min(max(low, 1.0), high)
        return round(number) if self.type == "integer" else number


class ParametersSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The parameters of a template: a JSON Schema of an object whose properties are scalars."""

    type: Literal["object"] = "object"
    properties: dict[str, Parameter] = {}
    required: list[str] = []
    additional_properties: Literal[False] = False

    def is_required(self, name: str) -> bool:
        return name in self.required or self.properties[name].default is msgspec.UNSET

    def document(self) -> dict[str, Any]:
        """Return the schema as JSON Schema. `required` has all parameters without a default."""
        required = [name for name in self.properties if self.is_required(name)]
        result: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, required=required))
        return result


def check_schema(schema: ParametersSchema, job: Mapping[str, Any], problems: Problems) -> None:
    """Add a problem for each parameter that is wrong, is used in `job` without a description, or is not used."""
    problems.count("parameters.properties", schema.properties, MAX_PARAMETERS, "parameters")
    used = uses(job)
    for name, parameter in schema.properties.items():
        path = f"parameters.properties.{name}"
        if not _NAME.fullmatch(name):
            problems.add(path, f"{name[:64]!r} is not a name; use lower-case letters, digits and _, a letter first")
        elif name not in used:
            problems.add(path, f"the job does not use it; write $(param.{name}) in the job, or remove the parameter")
        _check_parameter(parameter, path, problems)
    for name in sorted(used - schema.properties.keys()):
        problems.add(f"parameters.properties.{name}", f"the job uses $(param.{name[:64]}); describe this parameter")
    for index, name in enumerate(schema.required):
        if name not in schema.properties:
            problems.add(f"parameters.required[{index}]", f"{name[:64]!r} is not in parameters.properties; remove it")


def _check_parameter(parameter: Parameter, path: str, problems: Problems) -> None:
    for name, longest in (("title", 100), ("description", 1_000)):
        if (text := getattr(parameter, name)) is not msgspec.UNSET:
            problems.text(f"{path}.{name}", text, longest)
    for name, types in (("minLength", ("string",)), ("maxLength", ("string",)), ("minimum", ("integer", "number"))):
        _check_applies(parameter, name, types, path, problems)
    _check_applies(parameter, "maximum", ("integer", "number"), path, problems)
    low, high = parameter.lengths if parameter.type == "string" else parameter.bounds
    if not (low <= high and (parameter.type != "string" or low >= 0)):
        problems.add(path, "no value is possible; give bounds of which the smaller one is at least 0 and comes first")
        return
    if parameter.enum is not msgspec.UNSET:
        if not 1 <= len(parameter.enum) <= MAX_CHOICES:
            problems.add(f"{path}.enum", f"has {len(parameter.enum)} values; give 1 to {MAX_CHOICES}")
        free = msgspec.structs.replace(parameter, enum=msgspec.UNSET)
        for index, value in enumerate(parameter.enum):
            _check(value, free, problems, f"{path}.enum[{index}]", strict=True)
    if parameter.default is not msgspec.UNSET:
        _check(parameter.default, parameter, problems, f"{path}.default", strict=True)


def _check_applies(parameter: Parameter, name: str, types: tuple[str, ...], path: str, problems: Problems) -> None:
    attribute = {"minLength": "min_length", "maxLength": "max_length"}.get(name, name)
    if getattr(parameter, attribute) is not msgspec.UNSET and parameter.type not in types:
        problems.add(f"{path}.{name}", f"a parameter of type {parameter.type} has no {name}; remove it")


def arguments(schema: ParametersSchema, given: Mapping[str, Any], problems: Problems) -> dict[str, Value]:
    """Return the value of each parameter. `given`: the arguments by name; a text such as `3` is accepted for a number.
    Add a problem for each argument that is missing, unknown or wrong.
    """
    if len(given) > MAX_PARAMETERS:
        problems.add("parameters", f"has {len(given)} arguments; give at most {MAX_PARAMETERS}")
        return {}
    for name in given:
        if name not in schema.properties:
            known = ", ".join(schema.properties) or "none"
            problems.add(f"parameters.{name}", f"there is no such parameter; the parameters are {known}")
    result: dict[str, Value] = {}
    for name, parameter in schema.properties.items():
        path = f"parameters.{name}"
        if name in given:
            value = _check(given[name], parameter, problems, path)
            if value is not None:
                result[name] = value
        elif schema.is_required(name):
            problems.add(path, f"is missing; give {_wanted(parameter)}")
        elif parameter.default is not msgspec.UNSET:
            result[name] = parameter.default
    return result


def uses(job: Any) -> set[str]:
    """Return the names of the parameters that a job file uses."""
    found: set[str] = set()
    _map_texts(job, lambda text, _: found.update(one[1] for one in _USE.finditer(text) if one[1] is not None))
    return found


def check_size(job: Mapping[str, Any], values: Mapping[str, Value], problems: Problems) -> None:
    """Add a problem if the job with its arguments would be too large."""
    sizes = {name: len(_text(value).encode()) for name, value in values.items()}
    total = len(msgspec.json.encode(job))

    def count(text: str, _: bool) -> None:
        nonlocal total
        total += sum(sizes.get(one[1], 0) for one in _USE.finditer(text) if one[1] is not None)

    _map_texts(job, count)
    if total > MAX_FILLED:
        problems.add(
            "parameters", f"the job would have {total:,} bytes; give at most {MAX_FILLED:,}, or shorter values"
        )


def filled(job: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the job file with the values of its parameters. A text that consists of one parameter becomes its value,
    for example a number. Inside a longer text, and in commands, environment variables and labels, the value is text.
    """

    def fill(text: str, only_text: bool) -> Any:
        whole = _USE.fullmatch(text)
        if whole is not None and whole[1] is not None:
            value = values[whole[1]]
            return _text(value) if only_text else value
        return _USE.sub(lambda one: one[0] if one[1] is None else _text(values[one[1]]), text)

    result: dict[str, Any] = _map_texts(job, fill)
    return result


def _map_texts(part: Any, change: Callable[[str, bool], Any], *, only_text: bool = False) -> Any:
    """Return a copy of a job file in which `change` has changed each text. It gets the text, and whether the field can
    only be text.
    """
    if isinstance(part, str):
        return change(part, only_text)
    if isinstance(part, Mapping):
        return {
            key: _map_texts(value, change, only_text=only_text or key in _TEXT_FIELDS) for key, value in part.items()
        }
    if isinstance(part, list):
        return [_map_texts(one, change, only_text=only_text) for one in part]
    return part


def _text(value: Value) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _check(given: Any, parameter: Parameter, problems: Problems, path: str, *, strict: bool = False) -> Value | None:
    """Return `given` as a value of the parameter, or None after a problem was added. `strict`: whether a text is not
    accepted for a number.
    """
    kind: Any = {"string": str, "integer": int, "number": float, "boolean": bool}[parameter.type]
    try:
        # `strict=False` would also accept 1 for true.
        value: Value = msgspec.convert(given, kind, strict=strict or not isinstance(given, str) or kind is str)
    except msgspec.ValidationError:
        problems.add(path, f"{str(given)[:64]!r} is not of type {parameter.type}; give {_wanted(parameter)}")
        return None
    fits = parameter.enum is msgspec.UNSET or value in parameter.enum
    if isinstance(value, str):
        shortest, longest = parameter.lengths
        fits = fits and shortest <= len(value) <= longest
        if "$(" in value or value.endswith("$") or "\x00" in value:
            problems.add(path, "contains $(, a $ at its end, or a NUL character, which no argument can have; remove it")
            return None
    elif not isinstance(value, bool):
        low, high = parameter.bounds
        fits = fits and low <= value <= high
    if not fits:
        problems.add(path, f"{str(value)[:64]!r} is not allowed; give {_wanted(parameter)}")
        return None
    return value


def _wanted(parameter: Parameter) -> str:
    if parameter.enum is not msgspec.UNSET:
        shown = ", ".join(_text(one) for one in parameter.enum[:_SHOWN_CHOICES])
        return f"one of {shown}{', …' if len(parameter.enum) > _SHOWN_CHOICES else ''}"
    if parameter.type == "boolean":
        return "true or false"
    if parameter.type == "string":
        low, high = parameter.lengths
        return f"a text of {low} to {high} characters"
    parts = ["a whole number" if parameter.type == "integer" else "a number"]
    for words, bound in (("at least", parameter.minimum), ("at most", parameter.maximum)):
        if bound is not msgspec.UNSET:
            parts.append(f"{words} {format_number(bound, 12, separators=False)}")
    return " and ".join(parts)
