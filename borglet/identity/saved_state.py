"""The files in a Borglet's home folder: its identity, and its last desired state.

    home/identity.json    hostname, cell, secret, the next secret; mode 0600
    home/authority.pem    the certificate authorities of its cell
    home/desired.json     the last desired state; incarnations that failed too often or wait for an SRE's decision
    home/lock             the one Borglet that owns this home holds a lock on it

Each file is replaced whole (`files.replace_file`). After a power loss, it has its old or its new content.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from borglet.files import replace_file
from borglet.state.instructions import Remembered

log = logging.getLogger(__name__)


class Identity(msgspec.Struct, frozen=True):
    """The identity that this machine received when it joined its cell."""

    hostname: str
    cell: str
    secret: str
    next: str = ""  # the secret that will replace `secret`, see `credentials`
    api_url: str = ""  # the address of the REST API for tasks, as last received from the cell

    def __repr__(self) -> str:
        return f"Identity(hostname={self.hostname!r}, cell={self.cell!r}, secret=…)"


class IdentityStore(Protocol):
    """The store of the state that a Borglet needs again after a restart."""

    def load(self) -> Remembered:
        """Return the last saved state. On a new machine, this is an empty state."""

    def save(self, remembered: Remembered) -> None:
        """Store the state so that it survives a power loss. Raises OSError if the write fails; the old state is then
        still there.
        """


class HomeInUse(RuntimeError):
    """The error if another Borglet uses the same home folder. Stop that Borglet first."""


class DiskStore:
    """The store on the disk of a real machine. It contains the desired state, the machine's identity and the
    certificate authorities of its cell.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        home.mkdir(mode=0o711, parents=True, exist_ok=True)

    def load(self) -> Remembered:
        path = self._home / "desired.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Remembered)
        except FileNotFoundError:
            return Remembered()
        except msgspec.MsgspecError as error:
            aside = path.with_name(f"desired.json.unreadable.{time.time_ns()}")
            os.replace(path, aside)
            # Running tasks continue and are reported, and the master sends the desired state again.
            log.error("cannot read %s (%s); the Borglet moved it to %s", path, error, aside)
            return Remembered()

    def save(self, remembered: Remembered) -> None:
        replace_file(self._home / "desired.json", msgspec.json.encode(remembered))

    def identity(self) -> Identity | None:
        """Return the identity; None before the machine has joined. Raises ValueError for a damaged file."""
        path = self._home / "identity.json"
        try:
            identity = msgspec.json.decode(path.read_bytes(), type=Identity)
            self.authority()
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise ValueError(f"cannot read {path}: {error}; remove the file and join again with a new token") from error
        return identity

    def authority(self) -> str:
        """Return the certificates of the cell's authorities, as PEM. Raises FileNotFoundError if the machine has not
        joined a cell yet.
        """
        return (self._home / "authority.pem").read_text("ascii")

    def save_identity(self, identity: Identity, *, authority: str) -> None:
        """Store the certificate authorities of the cell (`authority`, PEM) first, and then the identity. Raises OSError
        if a write fails.
        """
        self.keep_authority(authority)
        self.keep_identity(identity)

    def keep_identity(self, identity: Identity) -> None:
        """Replace the stored identity. Raises OSError if the write fails; the old identity is then still there."""
        replace_file(self._home / "identity.json", msgspec.json.encode(identity))

    def keep_authority(self, pem: str) -> None:
        """Replace the stored certificate authorities of the cell. Raises OSError if the write fails; the old ones are
        then still there.
        """
        replace_file(self._home / "authority.pem", pem.encode("ascii"), mode=0o644)

    @contextlib.contextmanager
    def lock(self, *, wait_s: float = 0.0) -> Iterator[None]:
        """Hold the lock of the Borglet's home folder during the `with` block. Raises `HomeInUse` if another process
        still holds the lock after `wait_s` seconds.
        """
        path = self._home / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_s
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() >= deadline:
                        owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                        raise HomeInUse(
                            f"the Borglet with process id {owner} uses {self._home}; stop it first"
                        ) from error
                    time.sleep(0.05)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)


class MemoryStore:
    """An `IdentityStore` in memory, for simulated machines and tests."""

    def __init__(self, remembered: Remembered | None = None) -> None:
        self.remembered = remembered if remembered is not None else Remembered()

    def load(self) -> Remembered:
        return self.remembered

    def save(self, remembered: Remembered) -> None:
        self.remembered = remembered
