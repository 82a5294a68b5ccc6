"""Control groups for tasks, version 1 or 2: found, limited, measured, removed. Says what it can't enforce.

    <our own group>/borg-<hash of home>/<job>.<index>.<incarnation>      in each controller of version 1
    <our own group>/borg-<hash of home>/<job>.<index>.<incarnation>      once in version 2

Version 2 lets a group with children hold no processes: where ours holds only this process, it moves into
`<our own group>/borglet` first. Under systemd the unit needs `Delegate=yes` and `KillMode=process`.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from borglet.runtimes import cgroupfs
from borglet.runtimes.cgroupfs import Groups
from borglet.runtimes.limits import KernelLimits, weight_of

log = logging.getLogger(__name__)

# Version 1: controller -> the file that shows it can do what it is used for.
_V1_FILES = {
    "memory": "memory.limit_in_bytes",
    "cpu": "cpu.shares",
    "cpuacct": "cpuacct.usage",
    "pids": "pids.max",
}
_V2_CONTROLLERS = ("memory", "cpu", "pids")
_LEAF = "borglet"
_PERIOD_US = 100_000
_UNLIMITED_V1 = "-1"


@dataclass(frozen=True, slots=True)
class Measured:
    """`cpu_ns` since the group's creation, `ram_bytes` without page cache; None where not accounted here.

    `throttled_ns`: how long its threads were held back by its quota, summed over the cores they would have had.
    """

    cpu_ns: int | None
    ram_bytes: int | None
    processes: int | None
    throttled_ns: int = 0


class CgroupTree:
    """The groups of one Borglet home. `roots` is controller -> its borg-<hash> directory."""

    def __init__(self, version: str, roots: Mapping[str, Path], controllers: frozenset[str]) -> None:
        self.version = version
        self.roots = dict(roots)
        self.controllers = controllers

    def enforces(self, controller: str) -> bool:
        return controller in self.controllers

    def isolation(self) -> dict[str, str]:
        """Per feature `cgroup-v1`, `cgroup-v2` or, where missing, what remains: `polled` or `none`."""
        here = f"cgroup-{self.version}"
        return {
            "isolation.memory": here if self.enforces("memory") else "polled",
            "isolation.cpu": here if self.enforces("cpu") else "none",
            "isolation.cpu_quota": here if self._has_quota() else "none",
            "isolation.processes": here if self.enforces("pids") else "polled",
        }

    def _has_quota(self) -> bool:
        if not self.enforces("cpu"):
            return False
        root = self.roots["cpu" if self.version == "v1" else "unified"]
        return (root / ("cpu.cfs_quota_us" if self.version == "v1" else "cpu.max")).exists()

    def groups_of(self, name: str) -> Groups:
        return {controller: str(root / name) for controller, root in self.roots.items()}

    def create(self, name: str, limits: KernelLimits) -> Groups:
        """Make the task's groups and limit them. Raises OSError."""
        groups = self.groups_of(name)
        for directory in groups.values():
            os.makedirs(directory, exist_ok=True)
        self.limit(groups, limits)
        return groups

    def limit(self, groups: Groups, limits: KernelLimits) -> list[str]:
        """Write all limits. Returns what the kernel refused for now: a memory limit below what is in use."""
        if "unified" in groups:
            return self._limit_v2(groups["unified"], limits)
        return self._limit_v1(groups, limits)

    def _limit_v1(self, groups: Groups, limits: KernelLimits) -> list[str]:
        refused = []
        if directory := groups.get("memory"):
            refused = _limit_memory_v1(directory, limits.ram_bytes)
        if directory := groups.get("cpu"):
            cgroupfs.write_text(directory, "cpu.shares", str(limits.cpu_shares))
            quota = str(_quota_us(limits.cpu_quota_milli) or -1)
            _write_where_present(directory, "cpu.cfs_period_us", str(_PERIOD_US))
            _write_where_present(directory, "cpu.cfs_quota_us", quota)
        if directory := groups.get("pids"):
            cgroupfs.write_text(directory, "pids.max", str(limits.processes or "max"))
        return refused

    def _limit_v2(self, directory: str, limits: KernelLimits) -> list[str]:
        if self.enforces("memory"):
            cgroupfs.write_text(directory, "memory.max", str(limits.ram_bytes or "max"))
            _write_where_present(directory, "memory.swap.max", "0")
            _write_where_present(directory, "memory.oom.group", "1")
        if self.enforces("cpu"):
            cgroupfs.write_text(directory, "cpu.weight", str(weight_of(limits.cpu_shares)))
            quota = _quota_us(limits.cpu_quota_milli) or "max"
            _write_where_present(directory, "cpu.max", f"{quota} {_PERIOD_US}")
        if self.enforces("pids"):
            cgroupfs.write_text(directory, "pids.max", str(limits.processes or "max"))
        return []

    def measure(self, groups: Groups) -> Measured:
        """Raises FileNotFoundError when the task's groups are gone."""
        if directory := groups.get("unified"):
            memory = cgroupfs.read_fields(directory, "memory.stat")
            spent = cgroupfs.read_fields(directory, "cpu.stat")
            cpu = spent.get("usage_usec")
            return Measured(
                throttled_ns=1000 * spent.get("throttled_usec", 0),
                cpu_ns=None if cpu is None else cpu * 1000,
                ram_bytes=memory["anon"] + memory["shmem"] if memory else None,
                processes=int(cgroupfs.read_text(directory, "pids.current"))
                if self.enforces("pids")
                else None,
            )
        cpu_ns = ram = processes = None
        throttled_ns = 0
        if directory := groups.get("cpuacct"):
            cpu_ns = int(cgroupfs.read_text(directory, "cpuacct.usage"))
        if directory := groups.get("cpu"):
            throttled_ns = cgroupfs.read_fields(directory, "cpu.stat").get("throttled_time", 0)
        if directory := groups.get("memory"):
            stat = cgroupfs.read_fields(directory, "memory.stat")
            ram = stat["total_rss"] + stat.get("total_shmem", 0)
        if directory := groups.get("pids"):
            processes = int(cgroupfs.read_text(directory, "pids.current"))
        return Measured(cpu_ns, ram, processes, throttled_ns)

    def sweep(self, keep: set[str]) -> None:
        """Remove empty groups of tasks that are not in `keep`."""
        for root in self.roots.values():
            for entry in os.scandir(root):
                if entry.is_dir() and entry.name not in keep and not cgroupfs.remove({"": entry.path}):
                    log.warning("control group %s belongs to no task here but has processes", entry.path)

    def remove(self) -> None:
        """Remove the tree itself, when no task is left in it."""
        cgroupfs.remove({controller: str(root) for controller, root in self.roots.items()})


def detect(home: Path, *, proc: Path = Path("/proc/self")) -> CgroupTree | None:
    """Make `borg-<hash of home>` below our own group wherever we may; None where nothing can be limited.

    Version 2 is taken when it has the memory controller, else version 1.
    """
    name = "borg-" + hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:12]
    own = _own_groups(proc)
    return _detect_v2(own, name) or _detect_v1(own, name)


def _detect_v1(own: dict[str, Path], name: str) -> CgroupTree | None:
    roots = {}
    for controller, probe in _V1_FILES.items():
        if controller not in own:
            continue
        root = own[controller] / name
        try:
            root.mkdir(exist_ok=True)
            if controller == "cpu":  # all tasks together weigh as much as the machine has cores
                cgroupfs.write_text(str(root), "cpu.shares", str(1024 * (os.cpu_count() or 1)))
        except OSError as error:
            log.info("no control groups for %s: %s", controller, error)
            continue
        if (root / probe).exists():
            roots[controller] = root
    return CgroupTree("v1", roots, frozenset(roots)) if roots else None


def _detect_v2(own: dict[str, Path], name: str) -> CgroupTree | None:
    base = own.get("")
    if base is None:
        return None
    if base.name == _LEAF:  # where an earlier Borglet of this unit moved to
        base = base.parent
    try:
        offered = set(cgroupfs.read_text(str(base), "cgroup.controllers").split()) & set(_V2_CONTROLLERS)
        if "memory" not in offered:
            return None
        enable = " ".join(f"+{controller}" for controller in sorted(offered))
        try:
            cgroupfs.write_text(str(base), "cgroup.subtree_control", enable)
        except OSError:
            if not _leave_for_leaf(base):
                raise
            cgroupfs.write_text(str(base), "cgroup.subtree_control", enable)
        root = base / name
        root.mkdir(exist_ok=True)
        cgroupfs.write_text(str(root), "cgroup.subtree_control", enable)
    except OSError as error:
        log.info("no control groups of version 2: %s", error)
        return None
    return CgroupTree("v2", {"unified": root}, frozenset(offered))


def _leave_for_leaf(base: Path) -> bool:
    """Move this process out of the way of its group's children; False when others live there too."""
    if cgroupfs.members({"": str(base)}) != {os.getpid()}:
        return False
    (base / _LEAF).mkdir(exist_ok=True)
    cgroupfs.write_text(str(base / _LEAF), "cgroup.procs", str(os.getpid()))
    return True


def _own_groups(proc: Path) -> dict[str, Path]:
    """Controller -> directory of our own group; version 2 under the empty name."""
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
    """Where group `path` shows under a mount of the subtree `mount_root` (a container sees only its own)."""
    if mount_root != "/" and path.startswith(mount_root):
        path = path[len(mount_root) :]
    candidate = mount_point / path.lstrip("/")
    return candidate if candidate.is_dir() else mount_point


def _limit_memory_v1(directory: str, ram_bytes: int) -> list[str]:
    """The memory limit may never pass the limit with swap: which goes first depends on the direction."""
    value = str(ram_bytes) if ram_bytes else _UNLIMITED_V1
    names = ["memory.limit_in_bytes"]
    if os.path.exists(os.path.join(directory, "memory.memsw.limit_in_bytes")):
        current = cgroupfs.read_number(directory, "memory.memsw.limit_in_bytes")
        grows = not ram_bytes or ram_bytes > current
        names.insert(0 if grows else 1, "memory.memsw.limit_in_bytes")
    refused = []
    for name in names:
        try:
            cgroupfs.write_text(directory, name, value)
        except OSError as error:
            refused.append(f"{name}={value}: {error.strerror}")
    return refused


def _quota_us(milli: int) -> int:
    return max(1000, milli * _PERIOD_US // 1000) if milli else 0


def _write_where_present(directory: str, name: str, value: str) -> None:
    if os.path.exists(os.path.join(directory, name)):
        cgroupfs.write_text(directory, name, value)
