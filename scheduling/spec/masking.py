"""Masks that hide environment values that look like secrets from people who may only view a job. Pure.

A value looks like a secret if its variable has a name such as `DB_PASSWORD` or `apiKey`. It also looks like a secret
if it is a private key, or a URL or connection string that contains a password. Masks hide such values from viewers and
from tokens with scope read. Stored values are not masked; `scheduling/README.md` lists where values are stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "(hidden: looks like a secret)"
# What `manage.py secrets erase-env` writes in place of a value. A spec with it is rejected.
ERASED = "(erased: looked like a secret)"

# Parts of a name that mark a secret, at any position.
_PARTS = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|PRIVATE|TOKENS?(?![A-Z])|APIKEY|ACCESSKEY|AUTHKEY|SIGNINGKEY"
)
# Words of a name that mark a secret.
_WORDS = frozenset({"PASS", "PWD", "KEY", "KEYS", "AUTH", "CREDS", "CRED", "DSN", "PAT", "COOKIE", "SALT"})
_NO_SECRETS = frozenset({"PWD", "OLDPWD"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_VARIABLE = re.compile(r"\$\([a-z0-9_.]+\)")
_VALUES = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@"  # a URL with a password
    r"|\b(?:password|passwd|pwd)\s*=\s*[^\s;]"  # a connection string with a password
    r"|-----BEGIN [A-Z ]*PRIVATE KEY",
    re.IGNORECASE,
)


def looks_secret(name: str, value: str) -> bool:
    """Return whether the environment variable `name` looks like a secret, because of its name or its `value`."""
    if not value:
        return False
    if name not in _NO_SECRETS and (
        _PARTS.search(name.upper()) or any(word.upper() in _WORDS for word in _WORD.findall(name))
    ):
        return True
    return _VALUES.search(value) is not None


def without_secrets(file: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a copy of a job file in which `ERASED` replaces each environment value that looks like a secret, also in
    overrides, and the number of these values. Variables in `plain_env` stay.
    """
    task = file.get("task")
    base = task if isinstance(task, Mapping) else {}
    changed, count = dict(file), 0
    if base:
        changed["task"], count = _erased_task(base, base)
    if isinstance(file.get("overrides"), Mapping):
        changed["overrides"] = {}
        for key, patch in file["overrides"].items():
            changed["overrides"][key], more = _erased_task(patch, base) if isinstance(patch, Mapping) else (patch, 0)
            count += more
    return changed, count


def _names_no_value(value: str) -> bool:
    """Return whether a value is a mask, was erased, or consists of one variable, such as `$(param.token)`."""
    return value in (MASK, ERASED) or _VARIABLE.fullmatch(value) is not None


def _erased_task(task: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a task, or an override of the task `base`, without values that look like secrets, and their number."""
    env = task.get("env")
    plain = task.get("plain_env", base.get("plain_env")) or ()
    if not isinstance(env, Mapping):
        return dict(task), 0
    gone = {
        name
        for name, value in env.items()
        if name not in plain and isinstance(value, str) and not _names_no_value(value) and looks_secret(name, value)
    }
    return {**task, "env": {name: ERASED if name in gone else value for name, value in env.items()}}, len(gone)


def masked(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a job file in which `MASK` replaces each environment value that looks like a secret.

    The values in overrides are masked too. `file`: the result of `JobSpecification.to_json`.
    """
    shown = dict(file)
    if isinstance(file.get("task"), Mapping):
        shown["task"] = _masked_task(file["task"])
    if isinstance(file.get("overrides"), Mapping):
        shown["overrides"] = {
            key: _masked_task(patch) if isinstance(patch, Mapping) else patch
            for key, patch in file["overrides"].items()
        }
    return shown


def _masked_task(task: Mapping[str, Any]) -> dict[str, Any]:
    env = task.get("env")
    if not isinstance(env, Mapping):
        return dict(task)
    hidden = {
        name: MASK if isinstance(value, str) and looks_secret(name, value) else value for name, value in env.items()
    }
    return {**task, "env": hidden}
