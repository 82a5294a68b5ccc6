"""Make the root directory of a task in a container: a small directory, on which folders of the machine or of a package
are mounted.

    host       bin -> usr/bin …   /usr (read-only)   a few files of /etc     nothing else of the machine
    packages   each entry of the first package, read-only; a new /etc if the package has none
    both       /work /tmp (its own, writable)   /packages/<name> (read-only)   /alloc/{shared,logs}   /proc /sys /dev

The directory belongs to the user root and is mounted read-only. All tasks that use the machine's /usr share one
directory. The few files that differ between tasks are mounted over files of this directory.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from borglet.runtimes.base.runtime import NO_TREES
from borglet.runtimes.base.secret_files import CONFIGS
from borglet.runtimes.base.task_users import TASK_UID, Account
from borglet.runtimes.oci.bundle import ALLOC, CONFIG_FILES, IDENTITY, PACKAGES, SECRETS, TMP, WORK, Mount

# Directories in the root of a modern system. If they are links to /usr on the machine, they are links inside, too.
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# The Borglet creates these directories. Entries of a package with these names are ignored.
_OURS = frozenset({"alloc", "proc", "run", "sys", "dev", "tmp", "work", "packages"})
_FOLDERS = ("run/borg", "run/secrets", "run/configs", "alloc/shared", "alloc/logs")
# Files that programs need: names and their resolution, time, certificates, linker. No passwords, keys or services.
_ETC_FILES = (
    "debian_version",
    "gai.conf",
    "host.conf",
    "hosts",
    "ld.so.conf",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/openssl.cnf",
    "timezone",
)
_ETC_SHOWN = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "fonts",
    "ld.so.cache",
    "ld.so.conf.d",
    "pki/ca-trust",
    "pki/tls/certs",
    "ssl/certs",
)
_MAX_ETC_BYTES = 2**20


class SharedRoot:
    """The root directory of all containers that use the machine's /usr. They share one directory, because writing forty
    small files per start is slow.

    The directory is made from files of the machine. If one of these files changes, the next task gets a new root
    directory. Running tasks keep the old one.
    """

    def __init__(self, folder: Path, machine: Path = Path("/")) -> None:
        self._folder, self._machine = folder, machine
        self._signature = ""
        self._mounts: list[Mount] = []

    def current(self) -> tuple[Path, list[Mount]]:
        """Return the present root directory, and the mounts to make in it, in this order. Raises OSError if a folder or
        file cannot be made.
        """
        signature = self._look()
        root = self._folder / signature
        if signature != self._signature:
            _folder(self._folder)
            new = self._folder / "new"
            if new.exists():
                shutil.rmtree(new)
            self._mounts = self._make(new)
            if root.exists():  # of an earlier Borglet
                shutil.rmtree(new)
            else:
                new.rename(root)
            self._signature = signature
        return root, self._mounts

    def sweep(self, used: Collection[str]) -> None:
        """Delete old root directories. `used`: the paths of the root directories that tasks still use."""
        if not self._folder.is_dir():
            return
        for entry in list(os.scandir(self._folder)):
            if entry.path not in used and entry.name != self._signature:
                shutil.rmtree(entry.path)

    def _look(self) -> str:
        """Return a text that changes when one of the files changes from which this root directory is made."""
        seen: list[object] = [*_FOLDERS]
        for name in _SYSTEM:
            original = self._machine / name
            seen.append(os.readlink(original) if original.is_symlink() else original.is_dir())
        for name in (*_ETC_FILES, *_ETC_SHOWN):
            try:
                about = (self._machine / "etc" / name).stat()
            except OSError:
                seen.append(None)
                continue
            seen.append(
                (about.st_mode, about.st_ino, *((about.st_size, about.st_mtime_ns) if name in _ETC_FILES else ()))
            )
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]

    def _make(self, root: Path) -> list[Mount]:
        _folder(root)
        _make_ours(root)
        for name in ("usr", "var"):
            _folder(root / name)
        (root / "var" / "tmp").symlink_to("../tmp")
        (root / "var" / "run").symlink_to("../run")
        mounts = [Mount(str(self._machine / "usr"), "/usr")]
        for name in _SYSTEM:
            original = self._machine / name
            if original.is_symlink():
                (root / name).symlink_to(os.readlink(original))
            elif original.is_dir():
                _folder(root / name)
                mounts.append(Mount(str(original), f"/{name}"))
        return mounts + _etc(root / "etc", self._machine / "etc", system=True)


def build(
    own: Path,
    shared: SharedRoot,
    *,
    work: Path,
    tmp: Path,
    account: Account,
    identity: Path | None = None,
    secrets: Path | None = None,
    alloc: Path | None = None,
    trees: Mapping[str, Path] = NO_TREES,
    base: Path | None = None,
    hosts: Mapping[str, str] = MappingProxyType({}),
    machine: Path = Path("/"),
) -> tuple[Path, list[Mount]]:
    """Return the task's root directory, and the mounts to make in it, in this order. Raises OSError if a folder or file
    cannot be made.

    `own`: a new directory for the files of only this task. `base`: the package whose files form the root directory, or
    None for the machine's /usr. `hosts`: names with addresses for /etc/hosts.
    """
    if own.exists():
        shutil.rmtree(own)
    _folder(own)
    if base is None:
        root, found = shared.current()
        mounts = list(found)
    else:
        root = own / "root"
        _folder(root)
        _make_ours(root)
        mounts = _from_package(root, base)
        if not (root / "etc").exists():
            mounts += _etc(root / "etc", machine / "etc", system=False)
    mounts += _names(own, base, machine / "etc", account, hosts)
    mounts += [Mount(str(work), WORK, writable=True), Mount(str(tmp), TMP, writable=True)]
    if identity is not None:
        mounts.append(Mount(str(identity), IDENTITY))
    if secrets is not None:
        mounts.append(Mount(os.path.realpath(secrets), SECRETS))
        if (secrets / CONFIGS).is_dir():
            mounts.append(Mount(os.path.realpath(secrets / CONFIGS), CONFIG_FILES))
    if alloc is not None:
        mounts += [
            Mount(str(alloc / "shared"), f"{ALLOC}/shared", writable=True),
            Mount(str(alloc / "logs"), f"{ALLOC}/logs"),
        ]
    if trees:
        _folder(own / "packages")
        mounts.append(Mount(str(own / "packages"), PACKAGES))
    for name, tree in trees.items():
        _folder(own / "packages" / name)
        mounts.append(Mount(str(tree), f"{PACKAGES}/{name}"))
    return root, mounts


def _folder(path: Path) -> None:
    """Create a folder and its parents, with read permission for all users."""
    if not path.parent.exists():
        _folder(path.parent)
    path.mkdir(exist_ok=True)
    path.chmod(0o755)


def _make_ours(root: Path) -> None:
    for name in _OURS:
        _folder(root / name)
    for name in _FOLDERS:
        _folder(root / name)


def _names(own: Path, base: Path | None, etc: Path, account: Account, hosts: Mapping[str, str]) -> list[Mount]:
    """Write the task's own files of /etc (users and host names), and return the mounts that place them over the files
    of the same name in its root directory.
    """
    uid, gid, _ = account
    files = {
        "passwd": _passwd(uid, gid),
        "group": _lines({"root": "x:0:", "nogroup": "x:65534:", _name_of(uid): f"x:{gid}:"}),
    }
    if base is not None and (base / "etc").exists():  # a package keeps its users, but gets the machine's host names
        files = {}
        for name in ("hosts", "resolv.conf"):
            if (base / "etc" / name).is_file() and not (base / "etc" / name).is_symlink():
                files[name] = _read(etc / name).decode(errors="replace")
    if hosts and (base is None or "hosts" in files or not (base / "etc").exists()):
        known = files.get("hosts") or _read(etc / "hosts").decode(errors="replace")
        files["hosts"] = known + "".join(f"{address}\t{name}\n" for name, address in hosts.items())
    mounts = []
    for name, text in files.items():
        _write(own / name, text)
        mounts.append(Mount(str(own / name), f"/etc/{name}"))
    return mounts


def _from_package(root: Path, base: Path) -> list[Mount]:
    mounts = []
    for entry in sorted(os.scandir(base), key=lambda entry: entry.name):
        if entry.is_symlink() and entry.name not in _OURS:
            (root / entry.name).symlink_to(os.readlink(entry.path))
        elif entry.name not in _OURS:
            mounts += _mount(Path(entry.path), root, entry.name)
    return mounts


def _mount(source: Path, root: Path, target: str) -> list[Mount]:
    """Make an empty file or folder `target` in the directory `root`, and return the mount of `source` at this place.
    Return an empty list if `source` is a link or does not exist.
    """
    if source.is_symlink() or not (source.is_dir() or source.is_file()):
        return []
    if source.is_dir():
        _folder(root / target)
    else:
        _write(root / target, "")
    return [Mount(str(source), f"/{target}")]


def _etc(etc: Path, original: Path, *, system: bool) -> list[Mount]:
    """Make a task's folder /etc from the machine's folder `original`. Return the mounts to make in it. `system`:
    whether to include all files that programs in /usr need, or only the files for host names and time.
    """
    _folder(etc)
    for name in ("passwd", "group", "hosts"):
        _write(etc / name, "")
    files = _ETC_FILES if system else ("hosts", "nsswitch.conf", "resolv.conf", "host.conf", "localtime")
    for name in files:
        if content := _read(original / name):
            _folder((etc / name).parent)
            (etc / name).write_bytes(content)
            (etc / name).chmod(0o644)
    mounts = []
    for name in _ETC_SHOWN if system else ():
        _folder((etc / name).parent)
        mounts += _mount(original / name, etc.parent, f"etc/{name}")
    return mounts


def _passwd(uid: int, gid: int) -> str:
    return _lines(
        {
            "root": "x:0:0:root:/:/bin/sh",
            "init": f"x:{TASK_UID}:{TASK_UID}:init:/:/bin/false",
            "nobody": "x:65534:65534:nobody:/nonexistent:/bin/false",
            _name_of(uid): f"x:{uid}:{gid}::{WORK}:/bin/sh",
        }
    )


def _name_of(uid: int) -> str:
    """Return the machine's name of a user id. Return `task` if the user id has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "task"


def _lines(entries: Mapping[str, str]) -> str:
    return "".join(f"{name}:{rest}\n" for name, rest in entries.items())


def _read(source: Path) -> bytes:
    """Return the content of a file. The result is empty if the file does not exist or not every user may read it."""
    try:
        with source.open("rb") as file:
            if not os.fstat(file.fileno()).st_mode & 0o004:
                return b""
            return file.read(_MAX_ETC_BYTES)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)
