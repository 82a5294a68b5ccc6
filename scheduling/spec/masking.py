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

# Parts of a name that mark a secret, at any position.
_PARTS = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|PRIVATE|TOKENS?(?![A-Z])|APIKEY|ACCESSKEY|AUTHKEY|SIGNINGKEY"
)
# Words of a name that mark a secret.
_WORDS = frozenset({"PASS", "PWD", "KEY", "KEYS", "AUTH", "CREDS", "CRED", "DSN", "PAT", "COOKIE", "SALT"})
_NO_SECRETS = frozenset({"PWD", "OLDPWD"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
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
