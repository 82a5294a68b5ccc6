"""Store the packages of one machine on its disk. Each package is installed once, whole or not at all.

    home/packages/<digest>/   marker.json   its description and the digests of its tree; written last
                              tree/         read-only, shared by all tasks
                              archive       the downloaded file, for peers and to repair a damaged tree
    home/packages/incoming/   downloads that are not complete; a new Borglet removes them
    home/packages/trash/      packages that are being removed

If only the Borglet was restarted, no written file is lost, so the new Borglet checks only names, sizes and modes. After
a restart of the machine, the new Borglet reads all files and compares the digests. The methods block: call them in
threads. Methods for different digests can run at the same time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from borglet.files import replace_file, sync_directory
from borglet.messages import PackageRef
from borglet.packages.archives.checked_tree import TreeDigests
from borglet.packages.archives.disk import digests_of, file_digest, remove_tree
from borglet.packages.archives.limits import ArchiveLimits, ArchiveRefused, go_on
from borglet.packages.archives.unpacking import unpack

log = logging.getLogger(__name__)

BLOCK_BYTES = 4096


class Marker(msgspec.Struct, frozen=True):
    """The content of marker.json, the file that is written last into the folder of an installed package."""

    name: str
    digest: str
    format: str
    size_bytes: int  # size of the archive
    tree_bytes: int  # approximate disk space of the tree
    listing: str  # see `TreeDigests`
    contents: str
    boot_id: str  # boot in which the whole tree was last written or checked


@dataclass(frozen=True, slots=True)
class StoredPackage:
    """A package that is installed on the disk, with the time of its last use."""

    digest: str
    name: str
    disk_bytes: int  # disk space of archive and tree
    used_at: float  # seconds since the epoch


class PackageStore:
    """The folder of a machine's packages, with the archive and the unpacked tree of each package."""

    def __init__(self, home: Path, *, boot_id: str, limits: ArchiveLimits = ArchiveLimits()) -> None:
        self._root = home.absolute() / "packages"
        self._boot_id, self._limits = boot_id, limits
        self._incoming, self._trash = self._root / "incoming", self._root / "trash"

    def open(self) -> list[str]:
        """Return the digests of all packages on the disk. Call `check` before using a package. Raises OSError if the
        folder of the store cannot be used.
        """
        self._root.mkdir(mode=0o711, parents=True, exist_ok=True)
        for folder in (self._incoming, self._trash):
            folder.mkdir(mode=0o700, exist_ok=True)
            for left in os.listdir(folder):
                remove_tree(folder / left)
        return [f"sha256:{name}" for name in sorted(os.listdir(self._root)) if name not in ("incoming", "trash")]

    def check(self, digest: str, *, checkpoint: Callable[[], None] = go_on) -> StoredPackage | None:
        """Check a package and return it. If its files are damaged, unpack it again from its archive. If the archive is
        also damaged, remove the package and return None.

        If the package cannot be read, remove nothing and return None. `checkpoint` is called often, and may raise to
        stop the work.
        """
        folder = self._root / digest.partition(":")[2]
        try:
            return self._checked(folder, checkpoint)
        except OSError as error:
            log.error("cannot read package %s: %s", folder.name, error)
            return None

    def _checked(self, folder: Path, checkpoint: Callable[[], None]) -> StoredPackage | None:
        marker = self._marker(folder)
        if marker is None:
            log.warning(
                "package %s has no valid marker file, so its installation may be incomplete; the Borglet removes it",
                folder.name,
            )
            self._discard(folder)
            return None
        rebooted = marker.boot_id != self._boot_id
        try:
            digests = digests_of(folder / "tree", contents=rebooted, checkpoint=checkpoint)
        except OSError as error:
            log.warning("cannot read the tree of package %s: %s", marker.name, error)
            digests = TreeDigests("", "")
        whole = digests.listing == marker.listing and (not rebooted or digests.contents == marker.contents)
        if whole and rebooted and not self._archive_is_whole(folder, marker, checkpoint):
            log.warning("the archive of package %s is damaged", marker.name)
            whole = False
        if not whole:
            return self._repaired(folder, marker, checkpoint)
        if rebooted:
            self._write_marker(folder, msgspec.structs.replace(marker, boot_id=self._boot_id), keep_time=True)
        return self._installed(folder, marker)

    def _repaired(self, folder: Path, marker: Marker, checkpoint: Callable[[], None]) -> StoredPackage | None:
        """Unpack a package again from its archive. If the archive is damaged, remove the package and return None."""
        package = PackageRef(marker.name, marker.digest, marker.size_bytes, marker.format)
        if not self._archive_is_whole(folder, marker, checkpoint):
            log.error(
                "package %s and its archive are damaged; the Borglet removes it and downloads it again", marker.name
            )
            self._discard(folder)
            return None
        log.error("the tree of package %s is damaged; the Borglet unpacks it again", marker.name)
        incoming = self.begin(package)
        try:
            os.link(folder / "archive", incoming / "archive")
            return self.complete(package, incoming, checkpoint=checkpoint)
        except ArchiveRefused as error:  # an earlier release accepted it
            log.error("package %s: %s", marker.name, error)
            self._discard(folder)
            return None
        finally:
            self.abandon(incoming)

    def _archive_is_whole(self, folder: Path, marker: Marker, checkpoint: Callable[[], None]) -> bool:
        try:
            return f"sha256:{file_digest(folder / 'archive', checkpoint=checkpoint)}" == marker.digest
        except OSError:
            return False

    # -- one package

    def begin(self, package: PackageRef) -> Path:
        """Create and return a directory for a download. The caller stores the download there as the file `archive`, and
        then calls `complete` or `abandon`.
        """
        incoming = self._incoming / f"{_hex(package.digest)}.{secrets.token_hex(4)}"
        incoming.mkdir(mode=0o700, parents=True)
        return incoming

    def complete(
        self,
        package: PackageRef,
        incoming: Path,
        *,
        most_bytes: int | None = None,
        checkpoint: Callable[[], None] = go_on,
    ) -> StoredPackage:
        """Unpack the file `archive` in the directory `incoming`, and install the package in one atomic step. The caller
        has already checked the digest of the file.

        `most_bytes`: the largest total size of the unpacked files. `checkpoint` may raise to stop the work. Raises
        `ArchiveRefused` if the archive is not acceptable, and OSError if a file cannot be written.
        """
        tree = incoming / "tree"
        tree.mkdir(mode=0o700)
        limits = self._limits
        if most_bytes is not None and most_bytes < limits.unpacked_bytes:
            limits = dataclasses.replace(limits, unpacked_bytes=most_bytes)
        with (incoming / "archive").open("rb") as archive:
            unpacked = unpack(archive, package.format, tree, limits=limits, checkpoint=checkpoint)
            os.fsync(archive.fileno())
        marker = Marker(
            package.name,
            package.digest,
            package.format,
            package.size_bytes,
            unpacked.bytes + BLOCK_BYTES * unpacked.entries,
            unpacked.digests.listing,
            unpacked.digests.contents,
            self._boot_id,
        )
        self._write_marker(incoming, marker)
        incoming.chmod(0o711)
        final = self._root / _hex(package.digest)
        if final.exists():  # it is damaged, or it could not be read earlier
            self._discard(final)
        os.rename(incoming, final)
        sync_directory(self._root)
        return self._installed(final, marker)

    def abandon(self, incoming: Path) -> None:
        """Remove the directory that `begin` created. After `complete`, do nothing."""
        try:
            remove_tree(incoming)
        except OSError:
            log.exception("cannot remove %s; the next start tries again", incoming)

    def used(self, digest: str, at: float) -> None:
        """Store `at` (seconds since the epoch) as the time at which a package was last used."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._root / _hex(digest) / "marker.json", (at, at))

    def remove(self, digest: str) -> None:
        """Move a package to the trash, and delete it. Raises OSError if a file cannot be moved or deleted."""
        self._discard(self._root / _hex(digest))

    def tree(self, digest: str) -> Path:
        return self._root / _hex(digest) / "tree"

    def archive(self, digest: str) -> Path:
        return self._root / _hex(digest) / "archive"

    def free_bytes(self) -> int:
        """Return how many bytes are free on the file system for users other than root."""
        disk = os.statvfs(self._root)
        return disk.f_bavail * disk.f_frsize

    # -- files

    def _discard(self, folder: Path) -> None:
        aside = self._trash / f"{folder.name}.{secrets.token_hex(4)}"
        os.rename(folder, aside)
        remove_tree(aside)

    def _marker(self, folder: Path) -> Marker | None:
        try:
            marker = msgspec.json.decode((folder / "marker.json").read_bytes(), type=Marker)
        except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            return None
        return marker if marker.digest == f"sha256:{folder.name}" else None

    def _write_marker(self, folder: Path, marker: Marker, *, keep_time: bool = False) -> None:
        path = folder / "marker.json"
        used_at = path.stat().st_mtime if keep_time else None
        replace_file(path, msgspec.json.encode(marker))
        if used_at is not None:
            os.utime(path, (used_at, used_at))

    def _installed(self, folder: Path, marker: Marker) -> StoredPackage:
        return StoredPackage(
            marker.digest, marker.name, marker.size_bytes + marker.tree_bytes, (folder / "marker.json").stat().st_mtime
        )


def _hex(digest: str) -> str:
    """Return the hex digits of a digest, which name its directory. Raises ValueError if the text is not a SHA-256
    digest.
    """
    kind, _, digits = digest.partition(":")
    if kind != "sha256" or len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise ValueError(f"digest {digest[:100]!r}: this is not a digest; give sha256: and 64 hex digits")
    return digits
