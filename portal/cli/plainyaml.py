"""Loads job files in YAML 1.2, with the data types of JSON (the *core schema* of YAML 1.2).

By default, PyYAML reads YAML 1.1, which converts `on` (a field of `restart: {on: failure}`) to `true`, `1:00` to a
number, and text such as `2024-01-02` to a date. In this module, a value is text unless it is true, false, null or a
decimal number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from typing import Any

import yaml

from scheduling.spec.nesting import MAX_DEPTH, TOO_DEEP

_RESOLVERS = (
    ("tag:yaml.org,2002:bool", r"true|false", "tf"),
    ("tag:yaml.org,2002:null", r"~|null|", "~n\0"),
    ("tag:yaml.org,2002:int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)", "-+0123456789"),
)


class NotPlain(Exception):
    """The error for a text that is not a job file in YAML. `line`, `column`: the place of the error, counted from 1; 0
    means unknown.
    """

    def __init__(self, detail: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(detail)
        self.line, self.column = (mark.line + 1, mark.column + 1) if mark else (0, 0)


def load(text: str) -> Any:
    """Convert YAML to values with the data types of JSON. Raises `NotPlain` if `text` is not valid YAML."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader with fewer types
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotPlain(error.problem or error.context or "the text is not valid YAML at this place", mark) from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise NotPlain(str(error).splitlines()[0]) from error
    except ValueError as error:  # a number with thousands of digits
        raise NotPlain(str(error)) from error


def dump(value: Any) -> str:
    """Convert a value with the data types of JSON to YAML, from which `load` reads an equal value. Lists and mappings
    without others in them are on one line.
    """
    return str(
        yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    )


class _Dumper(yaml.SafeDumper):
    """A YAML writer without aliases. It also quotes texts that only YAML 1.2 reads as numbers, such as `7e12`."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Loader(yaml.SafeLoader):
    """A YAML loader that rejects aliases and deep nesting. A few bytes with aliases can expand to gigabytes.

    The loader counts each opening bracket and each deeper indentation, before it creates any object. It does not count
    a list without indentation, so callers must also check the nesting depth of the result.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    flow_level: int
    indent: int
    indents: list[int]

    def fetch_flow_collection_start(self, token: Any) -> None:
        self._check_depth()
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        if self.indent < column:
            self._check_depth()
        return bool(super().add_indent(column))

    def _check_depth(self) -> None:
        if self.flow_level + len(self.indents) >= MAX_DEPTH:
            raise NotPlain(f"the job {TOO_DEEP}", self.get_mark())

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            place: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise NotPlain("aliases are not supported; repeat the value", place)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise NotPlain("a key is not a string; use only strings as keys", key_node.start_mark)
            key = str(key_node.value)  # the text in the file, so that `0:` in overrides is '0'
            if key in found:
                raise NotPlain(f"{key!r} appears twice in one mapping; keep one of the two", key_node.start_mark)
            found[key] = self.construct_object(value_node, deep=True)
        return found

    def _number(self, node: yaml.ScalarNode) -> float:
        value = float(self.construct_scalar(node))
        if not math.isfinite(value):
            raise NotPlain(f"the number {node.value} is too large; use a smaller number", node.start_mark)
        return value

    def _other(self, node: yaml.Node) -> Any:
        raise NotPlain(f"a job cannot contain the type {node.tag}; use a type that JSON has", node.start_mark)


for _tag, _pattern, _first in _RESOLVERS:
    for _character in _first:
        _Loader.yaml_implicit_resolvers.setdefault("" if _character == "\0" else _character, []).append(
            (_tag, re.compile(f"(?:{_pattern})\\Z"))
        )
_Loader.yaml_constructors = {
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is not None and tag.rpartition(":")[2] in ("bool", "null", "int", "seq", "map", "str")
}
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader._number)
_Loader.add_constructor(None, _Loader._other)
for _tag, _pattern, _first in _RESOLVERS:
    _characters = ["" if _character == "\0" else _character for _character in _first]
    _Dumper.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})\\Z"), _characters)
