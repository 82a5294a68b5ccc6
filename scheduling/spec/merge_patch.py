"""JSON merge patches (RFC 7396), and the differences of two job files as text. Overrides of single tasks in a job file
are merge patches. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from scheduling.spec.masking import MASK, looks_secret

MOST_CHANGES = 100  # lines that describe the difference of two job files
_LONGEST_VALUE = 120  # characters of a value in such a line


def merged(base: Any, patch: Any) -> Any:
    """Return `base` with `patch` merged into it (RFC 7396). Objects are merged key by key. A null in the patch removes
    the key. Any other value in the patch replaces the old value.
    """
    if not isinstance(patch, dict):
        return patch
    result = dict(base) if isinstance(base, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def patch_to(base: Any, target: dict[str, Any]) -> dict[str, Any]:
    """Return the smallest patch that changes `base` into `target`."""
    patch: dict[str, Any] = {name: None for name in base if name not in target}
    for name, value in target.items():
        if name in base and base[name] == value:
            continue
        nested = isinstance(value, dict) and isinstance(base.get(name), dict)
        patch[name] = patch_to(base[name], value) if nested else value
    return patch


def format_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line for each field of a job file that differs, such as `task.limit.cpu: 1 → 2`, in the order of their
    paths, at most `MOST_CHANGES`. Values of environment variables that look like secrets are masked.
    """
    lines = [
        f"{path}: {_format(path, before, 'not set')} → {_format(path, after, 'removed')}"
        for path, before, after in sorted(_differences("", old, new), key=lambda change: change[0])
    ]
    more = len(lines) - MOST_CHANGES
    return [*lines[:MOST_CHANGES], f"{more} more fields change"] if more > 0 else lines


_ABSENT: Any = object()


def _differences(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path, the old value and the new value of each field that differs. `_ABSENT`: there is no value."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            below = f"{path}.{name}" if path else name
            yield from _differences(below, old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif old != new:
        yield path, old, new


def _format(path: str, value: Any, absent: str) -> str:
    if value is _ABSENT:
        return absent
    text = json.dumps(_masked(path, value), ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _masked(path: str, value: Any) -> Any:
    """Return a value in which `MASK` replaces each environment variable that looks like a secret."""
    *above, name = path.split(".") if path else [""]
    if isinstance(value, Mapping):
        return {key: _masked(f"{path}.{key}" if path else key, below) for key, below in value.items()}
    if isinstance(value, list):
        return [_masked(path, below) for below in value]
    return MASK if "env" in above and isinstance(value, str) and looks_secret(name, value) else value
