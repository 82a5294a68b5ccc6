"""Secrets and config files of tasks. The desired state contains only references. A Borglet asks the link for values."""

from __future__ import annotations

import msgspec

SECRET, CONFIG = "secret", "config"  # kinds of references
# What a running task notices when a config file has a new version. In each case the file is replaced as a whole, except
# that with RESTART the running task keeps its file, and the next one gets the new version.
NOTHING, SIGNAL, RESTART = "nothing", "signal", "restart"


class SecretRef(msgspec.Struct, frozen=True):
    """A secret or a config file that a task uses. `version`: 0 if the job may not use it now, or it does not exist.
    `file` or `env`: the name of the file, or of the environment variable, with its value. `kind`: secret or config.
    `on_change`: only of a config file, what follows from a new version: nothing, signal or restart.
    """

    name: str
    version: int
    file: str = ""
    env: str = ""
    kind: str = SECRET
    on_change: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Return the kind and the file. No two references of a task with a file have the same ones."""
        return self.kind, self.file


class SecretValue(msgspec.Struct, frozen=True):
    """The value of a secret or of a config file. It is only in memory, never in a file on a disk, a log or a report."""

    name: str
    version: int
    file: str
    env: str
    value: bytes
    kind: str = SECRET
    on_change: str = ""

    def __repr__(self) -> str:
        return f"SecretValue(name={self.name!r}, version={self.version}, value=…)"

    def ref(self) -> SecretRef:
        """Return the reference to this value, without the value."""
        return SecretRef(self.name, self.version, self.file, self.env, self.kind, self.on_change)


class SecretValues(msgspec.Struct, frozen=True):
    """The answer of the link: the values of the secrets and config files of one incarnation. `problems`: for each one
    without a value, the reason and the cure.
    """

    values: list[SecretValue]
    problems: list[str] = []
