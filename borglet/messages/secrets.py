"""Secrets of tasks. The desired state contains only references. A Borglet asks the link for the values."""

from __future__ import annotations

import msgspec


class SecretRef(msgspec.Struct, frozen=True):
    """A secret that a task uses. `version`: 0 if the job may not use it now, or it does not exist. `file` or `env`: the
    name of the file, or of the environment variable, with its value.
    """

    name: str
    version: int
    file: str = ""
    env: str = ""


class SecretValue(msgspec.Struct, frozen=True):
    """The value of a secret. It is only in memory, never in a file on a disk, a log or a report."""

    name: str
    version: int
    file: str
    env: str
    value: bytes

    def __repr__(self) -> str:
        return f"SecretValue(name={self.name!r}, version={self.version}, value=…)"


class SecretValues(msgspec.Struct, frozen=True):
    """The answer of the link: the values of the secrets of one incarnation. `problems`: for each secret without a
    value, the reason and the cure.
    """

    values: list[SecretValue]
    problems: list[str] = []
