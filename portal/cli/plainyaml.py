"""YAML as job files use it: the core schema of YAML 1.2, that is JSON with less to type.

YAML 1.1, which PyYAML reads by default, makes `true` of `on`, the very field of `restart: {on: failure}`, an hour of
`1:00`, a date of a version. Here only true, false, null and decimal numbers are anything else than text.
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
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)",
        "-+0123456789",
    ),
)


class NotPlain(Exception):
    """Why the text is no job; `line` and `column` count from 1, 0 where there is none."""

    def __init__(self, detail: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(detail)
        self.line, self.column = (mark.line + 1, mark.column + 1) if mark else (0, 0)


def load(text: str) -> Any:
    """What JSON could say too. Raises `NotPlain`."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader with fewer types
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotPlain(error.problem or error.context or "it can't be read", mark) from error
    except yaml.YAMLError as error:  # a character that YAML has not
        raise NotPlain(str(error).splitlines()[0]) from error
    except ValueError as error:  # a number of thousands of digits
        raise NotPlain(str(error)) from error


class _Loader(yaml.SafeLoader):
    """Aliases are refused too: a few bytes of those stand for gigabytes.

    The scanner looks ahead of what is composed, and looks at all open brackets with each token. It therefore counts
    levels itself. It does not see a sequence that is not indented: callers check the depth of the result as well.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    flow_level: int
    indent: int
    indents: list[int]

    def fetch_flow_collection_start(self, token: Any) -> None:
        self._check_depth()
        super().fetch_flow_collection_start(token)  # type: ignore[misc]

    def add_indent(self, column: int) -> bool:
        if self.indent < column:
            self._check_depth()
        return bool(super().add_indent(column))  # type: ignore[misc]

    def _check_depth(self) -> None:
        if self.flow_level + len(self.indents) >= MAX_DEPTH:
            raise NotPlain(TOO_DEEP, self.get_mark())  # type: ignore[no-untyped-call]

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            place: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise NotPlain("aliases are not read here; write it out", place)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise NotPlain("a key is a text", key_node.start_mark)
            key = str(key_node.value)  # as it is written: `0:` in overrides is '0'
            if key in found:
                raise NotPlain(f"{key!r} stands twice in one mapping; keep one", key_node.start_mark)
            found[key] = self.construct_object(value_node, deep=True)
        return found

    def _number(self, node: yaml.ScalarNode) -> float:
        value = float(self.construct_scalar(node))
        if not math.isfinite(value):
            raise NotPlain(f"{node.value} is too large for a number", node.start_mark)
        return value

    def _other(self, node: yaml.Node) -> Any:
        raise NotPlain(f"there is no {node.tag} in a job", node.start_mark)


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
