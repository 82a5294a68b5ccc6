"""What a contained task sees as `/`: a small directory, in which parts of the machine or of a package are shown.

    host       bin -> usr/bin …   /usr (read-only)   a few files of /etc     nothing else of the machine
    packages   each entry of the first package's tree, read-only; /etc by us where the package has none
    both       /work /tmp (its own, writable)   /packages/<name> (read-only)   /alloc/{shared,logs}   /proc /sys /dev

The directory lies beside the task's others, belongs to root and is shown read-only: no overlay, no copy of a system.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Mapping
from pathlib import Path

from borglet.runtimes.accounts import TASK_UID, Account
from borglet.runtimes.bundle import ALLOC, IDENTITY, PACKAGES, TMP, WORK, Mount

# Directories of a modern system's root; links on merged-usr machines, and then they are links inside too.
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Made by us, whatever a package has under these names.
_OURS = frozenset({"alloc", "proc", "run", "sys", "dev", "tmp", "work", "packages"})
# What programs look up: names and their resolution, time, certificates, the linker's. No passwords, keys or services.
_ETC_FILES = (
    "debian_version", "gai.conf", "host.conf", "hosts", "ld.so.conf", "localtime", "mime.types", "nsswitch.conf",
    "os-release", "protocols", "resolv.conf", "services", "ssl/openssl.cnf", "timezone",
)  # fmt: skip
_ETC_SHOWN = (
    "alternatives", "ca-certificates", "crypto-policies", "fonts", "ld.so.cache", "ld.so.conf.d", "pki/ca-trust",
    "pki/tls/certs", "ssl/certs",
)  # fmt: skip
_MAX_ETC_BYTES = 2**20


def build(
    root: Path,
    *,
    work: Path,
    tmp: Path,
    identity: Path | None,
    alloc: Path | None,
    trees: Mapping[str, Path],
    base: Path | None,
    account: Account,
    hosts: Mapping[str, str],
    machine: Path = Path("/"),
) -> list[Mount]:
    """Make the directory anew; what is to be shown in it, in order. Raises OSError.

    `base`: the package that is the root, None for the machine's /usr. `hosts`: further lines of /etc/hosts.
    """
    if root.exists():
        shutil.rmtree(root)
    root.mkdir(mode=0o755)
    for name in _OURS - {"alloc", "packages"}:
        (root / name).mkdir(mode=0o755)
    mounts = _from_machine(root, machine) if base is None else _from_package(root, base)
    if not (root / "etc").exists():
        mounts += _etc(root / "etc", machine / "etc", account, hosts, system=base is None)
    mounts += [Mount(str(work), WORK, writable=True), Mount(str(tmp), TMP, writable=True)]
    if identity is not None:
        (root / "run" / "borg").mkdir(mode=0o755)
        mounts.append(Mount(str(identity), IDENTITY))
    if alloc is not None:
        for part, writable in (("shared", True), ("logs", False)):
            (root / "alloc" / part).mkdir(mode=0o755, parents=True)
            mounts.append(Mount(str(alloc / part), f"{ALLOC}/{part}", writable=writable))
    if trees:
        (root / "packages").mkdir(mode=0o755)
    for name, tree in trees.items():
        (root / "packages" / name).mkdir(mode=0o755)
        mounts.append(Mount(str(tree), f"{PACKAGES}/{name}"))
    return mounts


def _from_machine(root: Path, machine: Path) -> list[Mount]:
    for name in ("usr", "var"):
        (root / name).mkdir(mode=0o755)
    (root / "var" / "tmp").symlink_to("../tmp")
    (root / "var" / "run").symlink_to("../run")
    mounts = [Mount(str(machine / "usr"), "/usr")]
    for name in _SYSTEM:
        original = machine / name
        if original.is_symlink():
            (root / name).symlink_to(os.readlink(original))
        elif original.is_dir():
            (root / name).mkdir(mode=0o755)
            mounts.append(Mount(str(original), f"/{name}"))
    return mounts


def _from_package(root: Path, base: Path) -> list[Mount]:
    mounts = []
    for entry in sorted(os.scandir(base), key=lambda entry: entry.name):
        if entry.name in _OURS:
            continue
        shown = root / entry.name
        if entry.is_symlink():
            shown.symlink_to(os.readlink(entry.path))
            continue
        if entry.is_dir(follow_symlinks=False):
            shown.mkdir(mode=0o755, exist_ok=True)
        elif entry.is_file(follow_symlinks=False):
            shown.touch(mode=0o644)
        else:
            continue
        mounts.append(Mount(entry.path, f"/{entry.name}"))
    return mounts


def _etc(
    etc: Path, original: Path, account: Account, hosts: Mapping[str, str], *, system: bool
) -> list[Mount]:
    """`system`: with what belongs to the machine's /usr; else only what tells of users and names."""
    etc.mkdir(mode=0o755)
    uid, gid, _ = account
    _write(etc / "passwd", _passwd(uid, gid))
    _write(etc / "group", _lines({"root": "x:0:", "nogroup": "x:65534:", _name_of(uid): f"x:{gid}:"}))
    files = _ETC_FILES if system else ("hosts", "nsswitch.conf", "resolv.conf", "host.conf", "localtime")
    for name in files:
        _copy(original / name, etc / name)
    if hosts:
        with (etc / "hosts").open("a") as file:
            file.writelines(f"{address}\t{name}\n" for name, address in hosts.items())
    mounts = []
    for name in _ETC_SHOWN if system else ():
        source, shown = original / name, etc / name
        shown.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if source.is_dir() and not source.is_symlink():
            shown.mkdir(mode=0o755)
        elif source.is_file() and not source.is_symlink():
            shown.touch(mode=0o644)
        else:
            continue
        mounts.append(Mount(str(source), f"/etc/{name}"))
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
    """A task's own user has no name on the machine; one that the job file names has."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "task"


def _lines(entries: Mapping[str, str]) -> str:
    return "".join(f"{name}:{rest}\n" for name, rest in entries.items())


def _copy(source: Path, target: Path) -> None:
    """Copies what everybody may read, as it is now; what is not there is left out."""
    try:
        with source.open("rb") as file:
            if not os.fstat(file.fileno()).st_mode & 0o004:
                return
            content = file.read(_MAX_ETC_BYTES)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o644)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)
