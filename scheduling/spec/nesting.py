"""A limit on how deep lists and objects may be nested in a request. Pure."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64  # a job file has six levels; JSON of other programs has rarely more than twenty
TOO_DEEP = f"is nested too deeply: more than {MAX_DEPTH} levels; remove some levels of lists and objects"


def too_deep(value: Any) -> bool:
    """Return whether lists and dicts in `value` are nested more than `MAX_DEPTH` levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [one for one in level if isinstance(one, dict | list)]
        if not containers:
            return False
        level = [inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return True
