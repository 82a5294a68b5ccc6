"""Read facts about this machine from the kernel: the control groups of this process, the disk of a directory, and the
NUMA node and physical core of each CPU core.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path


def own_groups(proc: Path) -> dict[str, Path]:
    """Return the directories of this process's own control groups, by controller. The key of version 2 is the empty
    string.
    """
    paths = {}
    try:
        lines = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    found: dict[str, Path] = {}
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(None, 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = [""] if kind == "cgroup2" else [option for option in options.split(",") if option]
        for controller in names:
            if controller in paths and controller not in found:
                found[controller] = _below(Path(fields[4]), fields[3], paths[controller])
    return found


def _below(mount_point: Path, mount_root: str, path: str) -> Path:
    """Return the directory of group `path`. `mount_root`: the group whose directory is `mount_point`."""
    if mount_root != "/" and path.startswith(mount_root):
        path = path[len(mount_root) :]
    candidate = mount_point / path.lstrip("/")
    return candidate if candidate.is_dir() else mount_point


def disk_of(directory: Path, *, devices: Path = Path("/sys/dev/block")) -> str:
    """Return `major:minor` of the whole disk that contains `directory`; empty if its file system is not on a local disk
    (overlay, tmpfs or network).
    """
    number = os.stat(directory).st_dev
    entry = devices / f"{os.major(number)}:{os.minor(number)}"
    if not entry.exists():
        return ""
    disk = entry.resolve()
    if (disk / "partition").exists():  # the kernel limits only whole disks
        disk = disk.parent
    try:
        return (disk / "dev").read_text().strip()
    except OSError:
        return ""


def places_of(cores: Collection[int], *, system: Path = Path("/sys/devices/system/cpu")) -> dict[int, tuple[int, int]]:
    """Return for each core a pair: its NUMA node, and the lowest core number of the same physical core. If the place of
    a core is unknown, its pair is (0, core).
    """
    found = {}
    for core in cores:
        directory = system / f"cpu{core}"
        try:
            siblings = parse_cpus((directory / "topology" / "thread_siblings_list").read_text())
        except OSError:
            siblings = frozenset()
        nodes = sorted(int(entry.name[4:]) for entry in directory.glob("node[0-9]*"))
        found[core] = (nodes[0] if nodes else 0, min(siblings, default=core))
    return found


def parse_cpus(text: str) -> frozenset[int]:
    """Parse the kernel's list of CPU cores, such as `0-3,8`, and return it as a set."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def format_cpus(cpus: Collection[int]) -> str:
    """Return a set of cores as the kernel's list, such as `0-3,8`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)
