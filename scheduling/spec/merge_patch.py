"""JSON merge patches (RFC 7396). Overrides of single tasks in a job file have this form. Pure."""

from __future__ import annotations

from typing import Any


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
