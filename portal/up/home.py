"""BORG_HOME: the folder with all data of one host, and the lock of the process that uses it.

postgres/  redis/     the data of the engines
authority/            the TLS authority of the cell
packages/             archives of packages, by cell and digest
names/                DNS names that the resolver stores, so that it can start without PostgreSQL
borglet/  fleet…/     the data of this host's Borglet, and of simulated machines, one folder per cell
log/                  one log per process, NAME.log, rotated
run/                  the lock, and one record per process
secrets.json          generated secret key, passwords and tokens (mode 0600)
secret-keys           keys of the secrets of tenants, one per line, newest first (mode 0600); not in backups
client.toml           configuration of borgctl (mode 0600)
layout                the version number of this layout
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from portal.cli.profiles import as_toml

LAYOUT = 1


class HomeError(RuntimeError):
    """The error if BORG_HOME cannot be used. The message contains the cause and what to do."""


class Home:
    """The folder BORG_HOME and the paths in it, such as the folder of logs and the file of secrets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log, self.run = path / "log", path / "run"
        self.metrics = self.run / "metrics"
        self.secrets, self.client = path / "secrets.json", path / "client.toml"
        self.secret_keys = path / "secret-keys"
        self.borglet, self.fleet = path / "borglet", path / "fleet"

    def reset_metrics(self) -> None:
        """Delete the metrics that the processes of an earlier start have written."""
        shutil.rmtree(self.metrics, ignore_errors=True)
        self.metrics.mkdir(mode=0o700)

    def prepare(self) -> None:
        """Create BORG_HOME and its folders. If BORG_HOME exists, check that this version can use it.

        Raises `HomeError` if a newer version created BORG_HOME, if the folder contains other files, or if this user may
        not write there.
        """
        layout = self.path / "layout"
        with self._usable():
            if layout.exists():
                found = layout.read_text().strip()
                if not found.isdigit() or int(found) > LAYOUT:
                    raise HomeError(
                        f"BORG_HOME={self.path} has layout {found}, and this version supports at most {LAYOUT}; "
                        "use the version of Borg Portal that created it"
                    )
            elif self.path.exists() and (others := {entry.name for entry in self.path.iterdir()} - {"run", "log"}):
                raise HomeError(
                    f"{self.path} is not a BORG_HOME and is not empty (it contains {min(others)}); "
                    "choose another folder"
                )
            # Other users may enter but not list: under root, the engines and the tasks run as other users.
            self.path.mkdir(mode=0o711, parents=True, exist_ok=True)
            for folder in (self.log, self.run):
                folder.mkdir(mode=0o700, exist_ok=True)
            layout.write_text(f"{LAYOUT}\n")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of BORG_HOME during the `with` block. Raises `HomeError` if another process holds the lock; the
        message contains the pid of that process.
        """
        with self._usable():
            self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.run / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 20).decode().strip() or "unknown"
                raise HomeError(
                    f"{self.path} is in use by process {holder}. Stop that process (kill -INT {holder}), "
                    "or start with another BORG_HOME."
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Convert each `OSError` of the `with` block to a `HomeError`, which says that BORG_HOME cannot be used."""
        try:
            yield
        except OSError as error:
            where = f" ({error.filename})" if error.filename and Path(error.filename) != self.path else ""
            raise HomeError(
                f"{self.path} cannot be used as BORG_HOME: {error.strerror}{where}; set another folder in BORG_HOME"
            ) from error

    def secrets_read(self) -> dict[str, Any]:
        """Return the stored secrets. If the secret key is missing, generate and store it.

        Raises `HomeError` if the file is not valid JSON.
        """
        try:
            known = json.loads(self.secrets.read_text())
        except FileNotFoundError:
            known = {}
        except ValueError as error:
            raise HomeError(f"{self.secrets} is damaged ({error}); restore it from a backup") from None
        if "secret_key" not in known:
            known["secret_key"] = secrets.token_urlsafe(64)
            write_private(self.secrets, json.dumps(known, indent=2) + "\n")
        return dict(known)

    def secret_keys_read(self) -> str:
        """Return the keys that encrypt the secrets of tenants, separated by commas, newest first. If there is no key,
        create one.

        Backups do not contain this file, because a backup with its keys would be as good as plain text.
        """
        with contextlib.suppress(FileNotFoundError):
            if keys := self.secret_keys.read_text().split():
                return ",".join(keys)
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        write_private(self.secret_keys, f"{key}\n")
        return key

    def secrets_add(self, news: Mapping[str, Any]) -> dict[str, Any]:
        """Add secrets to the secrets file, and return all secrets. The secrets are stored nowhere else."""
        merged = _merged(self.secrets_read(), news)
        write_private(self.secrets, json.dumps(merged, indent=2) + "\n")
        return merged


def client_toml(shared: Mapping[str, str], own: Mapping[str, Mapping[str, str]], *, before: str = "") -> str:
    """Return the text of the file `BORG_HOME/client.toml`. `shared`: values that all profiles share. `own`: the
    profiles that `make up` writes.

    `before`: the present text of the file. Profiles that `borgctl login` added to it are kept.
    """
    old = tomllib.loads(before)
    others = {name: entry for name, entry in sorted(old.get("profiles", {}).items()) if name not in own}
    default = str(old["default_profile"]) if old.get("default_profile") in (*others, "admin") else "demo"
    head = "# Each start of Borg Portal writes this file. Keep it private: it contains tokens.\n"
    return head + as_toml({**shared, "default_profile": default}, {**own, **others})


def write_private(path: Path, content: str) -> None:
    """Write a file that only its owner can read. A crash leaves either the old file or the complete new file. When this
    function returns, the file is on disk.
    """
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    fresh.replace(path)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return `old` with the values of `new`, also in nested mappings. If a value in `new` is None, keep the old one."""
    result = dict(old)
    for key, value in new.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = _merged(result[key], value)
        elif value is not None:
            result[key] = value
    return result
