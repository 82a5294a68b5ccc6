"""The files of a Borglet: its identity, and its last desired state.

    home/identity.json    hostname, cell, secret, the next secret; mode 0600
    home/authority.pem    the certificate authorities of its cell
    home/desired.json     the last desired state, and what goes with it
    home/lock             held by the one Borglet that may own this home

Each file is replaced whole: written beside, forced to the disk, renamed, the directory forced too. After a
power loss it is the old or the new one, never half of one.
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
    next: str = ""  # the secret that will take its place, see `credentials`
    api_url: str = ""  # where tasks reach the REST API, as the cell said last

    def __repr__(self) -> str:
        return f"Identity(hostname={self.hostname!r}, cell={self.cell!r}, secret=…)"


class IdentityStore(Protocol):
    def load(self) -> Remembered:
        """Return the last saved state; empty on a new machine."""

    def save(self, remembered: Remembered) -> None:
        """Replace the file, safe against a power loss. Raises OSError, and then nothing has changed."""


class HomeInUse(RuntimeError):
    """Another Borglet owns this home; stop it first."""


class DiskStore:
    """The store of a real machine."""

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
            raise ValueError(f"cannot read {path}: {error}. Remove the file and join again with a new token") from error
        return identity

    def authority(self) -> str:
        """PEM of the cell's authority. Raises FileNotFoundError before the machine has joined."""
        return (self._home / "authority.pem").read_text("ascii")

    def save_identity(self, identity: Identity, *, authority: str) -> None:
        """Store both. The identity comes last, so that a home with an identity has joined completely."""
        self.keep_authority(authority)
        self.keep_identity(identity)

    def keep_identity(self, identity: Identity) -> None:
        """Store the identity. Raises OSError, and then the old one is still there."""
        replace_file(self._home / "identity.json", msgspec.json.encode(identity))

    def keep_authority(self, pem: str) -> None:
        """Store the authorities. Raises OSError, and then the old ones are still there."""
        replace_file(self._home / "authority.pem", pem.encode("ascii"), mode=0o644)

    @contextlib.contextmanager
    def lock(self, *, wait_s: float = 0.0) -> Iterator[None]:
        """Own this home. Raises `HomeInUse` if another process still owns it after `wait_s`."""
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
    """A store in memory, for simulated machines and tests."""

    def __init__(self, remembered: Remembered | None = None) -> None:
        self.remembered = remembered if remembered is not None else Remembered()

    def load(self) -> Remembered:
        return self.remembered

    def save(self, remembered: Remembered) -> None:
        self.remembered = remembered
