"""Make, limit, measure and remove the control groups of tasks (version 1 or 2), and report which limits the control
groups enforce.

    <our own group>/borg-<hash of home>/<task>            latency-sensitive
    <our own group>/borg-<hash of home>-batch/<task>      batch: the whole group is in the idle class (§6.2)

    …/<alloc>/<task>                                      inside an alloc: one memory limit for all its tasks (§2.4)

`<task>` and `<alloc>` have the form `<job>.<index>.<incarnation>`. Version 2 has one tree of groups for all
controllers. Version 1 has one tree per controller. With version 1, only the CPU controller has `-batch` groups, and
only the memory controller has `<alloc>` groups. When a latency-sensitive thread wakes, it immediately takes the core
from a thread in the idle class. CPU weights do not have this effect. Tasks of the same class share CPU in proportion to
their weights.

"Our own group" is the control group of the Borglet's process. In version 2, a group with child groups cannot contain
processes. So if our own group contains only the Borglet, the Borglet first moves to `<our own group>/borglet`. A
systemd unit for the Borglet needs `Delegate=yes` and `KillMode=process`.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from borglet.runtimes.cgroups import cgroupfs, v1, v2
from borglet.runtimes.cgroups.cgroupfs import Groups
from borglet.runtimes.cgroups.limits import MIN_SHARES, KernelLimits
from borglet.runtimes.cgroups.system import disk_of, own_groups, parse_cpus
from borglet.runtimes.cgroups.v1 import GroupUsage

log = logging.getLogger(__name__)

_LEAF = "borglet"
_BATCH = "-batch"
# The shares of all batch tasks together while they are not in the idle class, equal to those of one ordinary process.
_BATCH_SHARES = 1024


class CgroupTree:
    """The control groups that one Borglet makes for its tasks. `roots`: the directory borg-<hash> of each controller;
    empty if the machine supports no control groups.

    `disk`: `major:minor` of the disk that contains the Borglet's home folder; empty if the bandwidth of this disk
    cannot be limited.
    """

    def __init__(self, version: str, roots: Mapping[str, Path], controllers: frozenset[str], *, disk: str = "") -> None:
        self.version = version
        self.roots = dict(roots)
        self.controllers = controllers
        self._disk = disk

    def enforces(self, controller: str) -> bool:
        return controller in self.controllers

    def isolation(self) -> dict[str, str]:
        """Return how each limit is enforced, by attribute name. `cgroup-v1` or `cgroup-v2`: by control groups.
        `polled`: the Borglet measures the usage, and stops a task that exceeds the limit. `weights`: only by CPU
        weights or nice values. `none`: not at all.
        """
        here = f"cgroup-{self.version}"
        classes = here if self._has("cpu", "cpu.idle") else "weights"  # weights of groups, or nice values of processes
        quota = "cpu.cfs_quota_us" if self.version == "v1" else "cpu.max"
        return {
            "isolation.memory": here if self.enforces("memory") else "polled",
            "isolation.cpu": here if self.enforces("cpu") else "none",
            "isolation.cpu_classes": classes,
            "isolation.cpu_quota": here if self._has("cpu", quota) else "none",
            "isolation.cores": here if self.enforces("cpuset") else "none",
            "isolation.processes": here if self.enforces("pids") else "polled",
            "isolation.disk_bandwidth": here if self._disk and self._io() else "none",
        }

    def _io(self) -> bool:
        return self.enforces("blkio") or self.enforces("io")

    def _has(self, controller: str, name: str) -> bool:
        if not self.enforces(controller):
            return False
        return (self._root(controller) / name).exists()

    def _root(self, controller: str) -> Path:
        return self.roots[controller if self.version == "v1" else "unified"]

    def cores(self) -> frozenset[int]:
        """Return the cores that tasks may use; empty if control groups cannot restrict tasks to cores."""
        if not self.enforces("cpuset"):
            return frozenset()
        root = str(self._root("cpuset"))
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if os.path.exists(os.path.join(root, name)):
                return parse_cpus(cgroupfs.read_text(root, name))
        return frozenset()

    def cores_of(self, groups: Groups) -> frozenset[int]:
        """Return the cores to which a task's control group is restricted. Return an empty set if there is no
        restriction.
        """
        directory = groups.get("cpuset") or (groups.get("unified", "") if self.enforces("cpuset") else "")
        return parse_cpus(cgroupfs.read_if_present(directory, "cpuset.cpus"))

    def groups_of(self, name: str) -> Groups:
        """Return the cgroups of the task `name` by controller. If the task has none, return the paths that its cgroups
        would have if it were latency-sensitive.
        """
        return {
            controller: str(next((found for top in self._tops(root) for found in _below(top, name)), root / name))
            for controller, root in self.roots.items()
        }

    def _tops(self, root: Path) -> tuple[Path, ...]:
        """Return the directories of a controller that contain the groups of tasks. These are one directory for batch
        tasks and one for other tasks, or a common one.
        """
        batch = self._batch_root(root)
        return (batch,) if batch == root else (batch, root)

    def create(self, name: str, limits: KernelLimits, *, alloc: str = "", alloc_ram_bytes: int = 0) -> Groups:
        """Make the control groups of a task, and set its limits. If the task has an alloc, the groups are made inside
        the group of the alloc. Raises OSError if a group cannot be made.
        """
        groups = {
            controller: str(self._parent(root, limits, alloc, alloc_ram_bytes) / name)
            for controller, root in self.roots.items()
            # Batch may run on any core, and a cpuset would make each start slower.
            if not (limits.batch and controller == "cpuset")
        }
        for directory in groups.values():
            os.makedirs(directory, exist_ok=True)
        self.limit(groups, limits)
        return groups

    def _parent(self, root: Path, limits: KernelLimits, alloc: str, ram_bytes: int) -> Path:
        parent = self._batch_root(root) if limits.batch else root
        if not alloc or root not in (self.roots.get("memory"), self.roots.get("unified")):
            return parent
        envelope = parent / alloc
        envelope.mkdir(exist_ok=True)
        if self.version == "v2":
            v2.open_to_children(str(envelope), self.controllers)
        self._bound(envelope, ram_bytes)
        return envelope

    def bound_alloc(self, alloc: str, ram_bytes: int) -> None:
        """Set the memory limit for all tasks in an alloc together; 0 for no limit. Raises OSError if the kernel rejects
        the limit.
        """
        if not self.enforces("memory"):
            return
        for top in self._tops(self._root("memory")):
            if (top / alloc).is_dir():
                self._bound(top / alloc, ram_bytes)

    def _bound(self, envelope: Path, ram_bytes: int) -> None:
        if self.version == "v1":
            v1.bound_memory(str(envelope), ram_bytes)
        elif self.enforces("memory"):
            cgroupfs.write_text(str(envelope), "memory.max", str(ram_bytes or "max"))

    def _batch_root(self, root: Path) -> Path:
        return _batch_of(root) if root in (self.roots.get("cpu"), self.roots.get("unified")) else root

    def limit(self, groups: Groups, limits: KernelLimits) -> list[str]:
        """Write all limits of a task. Return one text for each memory limit that the kernel rejected because the task
        uses more memory now.
        """
        if "unified" in groups:
            return v2.limit(groups["unified"], limits, self.controllers, disk=self._disk)
        return v1.limit(groups, limits, disk=self._disk)

    def pin(self, groups: Groups, cpus: frozenset[int]) -> None:
        """Restrict a task to these cores; an empty set means all. Raises OSError if the kernel rejects the cores."""
        if directory := groups.get("cpuset"):
            v1.pin(directory, cpus)
        elif "unified" in groups and self.enforces("cpuset"):
            v2.pin(groups["unified"], cpus)

    def limit_batch(self, milli: int, *, idle: bool) -> None:
        """Limit the CPU of all batch tasks together to `milli` milli-cores; 0 for no limit. Raises OSError if the
        kernel rejects the limit.

        `idle`: batch tasks get only CPU that no other process needs.
        """
        if not self.enforces("cpu"):
            return
        version = v1 if self.version == "v1" else v2
        directory = str(_batch_of(self._root("cpu")))
        version.cap(directory, milli)
        version.weigh(directory, _BATCH_SHARES, idle=idle)

    def measure(self, groups: Groups) -> GroupUsage:
        """Return the usage of a task. Raises FileNotFoundError if its groups are removed."""
        if "unified" in groups:
            return v2.measure(groups, self.controllers)
        return v1.measure(groups)

    def sweep(self, keep: set[str]) -> None:
        """Remove the control groups that contain no processes. `keep`: names of task directories whose groups are not
        removed.
        """
        parents = list(self._parents())
        for directory in parents:
            for entry in _entries(directory):
                if not entry.is_dir() or entry.name in keep or Path(entry.path) in parents:
                    continue
                if not cgroupfs.remove({"": entry.path}):
                    log.warning("control group %s belongs to no known task, but it has processes", entry.path)

    def remove(self) -> None:
        """Remove all control groups that this Borglet made for its home folder. Call this when no task is left."""
        for directory in list(self._parents()):
            cgroupfs.remove({"": str(directory)})

    def _parents(self) -> Iterator[Path]:
        """Yield all directories that contain groups of tasks. A directory inside another one comes first."""
        for root in self.roots.values():
            for directory in self._tops(root):
                if directory.is_dir():
                    yield from [Path(entry.path) for entry in _entries(directory) if _has_children(entry)]
                    yield directory


def detect(home: Path, *, proc: Path = Path("/proc/self")) -> CgroupTree:
    """For each controller, make the group `borg-<hash of home>` in the control group of this process. Return the
    groups. The result is an empty tree if the machine supports no control groups.

    Version 2 is used if it has the memory controller, otherwise version 1.
    """
    name = "borg-" + hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:12]
    own, disk = own_groups(proc), disk_of(home)
    return _detect_v2(own, name, disk) or _detect_v1(own, name, disk)


def _detect_v1(own: dict[str, Path], name: str, disk: str) -> CgroupTree:
    roots = {}
    for controller, probe in v1.FILES.items():
        if controller not in own:
            continue
        root = own[controller] / name
        try:
            root.mkdir(exist_ok=True)
            if not (root / probe).exists():
                continue
            if controller == "cpu":
                _make_classes_v1(root)
            elif controller == "cpuset":
                v1.open_cpuset(str(root))
        except OSError as error:
            log.info("cannot use control groups for %s: %s", controller, error)
            continue
        roots[controller] = root
    if disk and "blkio" in roots and not _takes_limits(roots["blkio"], v1.FILES["blkio"], f"{disk} 0"):
        disk = ""
    return CgroupTree("v1", roots, frozenset(roots), disk=disk)


def _takes_limits(root: Path, name: str, nothing: str) -> bool:
    """Return whether the bandwidth of the disk can be limited. To test this, write `nothing`, a text that means no
    limit, to the file `name` of the group `root`.
    """
    try:
        cgroupfs.write_text(str(root), name, nothing)
    except OSError as error:
        log.info("cannot limit disk bandwidth: %s", error)
        return False
    return True


def _make_classes_v1(root: Path) -> None:
    # All tasks together get the weight of one ordinary process per core.
    cgroupfs.write_text(str(root), "cpu.shares", str(1024 * (os.cpu_count() or 1)))
    _batch_of(root).mkdir(exist_ok=True)
    v1.weigh(str(_batch_of(root)), MIN_SHARES, idle=True)


def _batch_of(root: Path) -> Path:
    return root.with_name(root.name + _BATCH)


def _detect_v2(own: dict[str, Path], name: str, disk: str) -> CgroupTree | None:
    base = own.get("")
    if base is None:
        return None
    if base.name == _LEAF:  # an earlier Borglet of this unit moved there
        base = base.parent
    try:
        offered = set(cgroupfs.read_text(str(base), "cgroup.controllers").split())
        offered &= set(v2.CONTROLLERS)
        if "memory" not in offered:
            return None
        try:
            v2.open_to_children(str(base), offered)
        except OSError:
            if not _leave_for_leaf(base):
                raise
            v2.open_to_children(str(base), offered)
        root = base / name
        for directory in (root, _batch_of(root)):
            directory.mkdir(exist_ok=True)
            v2.open_to_children(str(directory), offered)
            # The kernel divides the protected memory among the tasks.
            v1.write_where_present(str(directory), "memory.low", "max")
        if "cpu" in offered:
            v2.weigh(str(_batch_of(root)), MIN_SHARES, idle=True)
    except OSError as error:
        log.info("cannot use control groups of version 2: %s", error)
        return None
    if disk and "io" in offered and not _takes_limits(root, "io.max", f"{disk} rbps=max wbps=max"):
        disk = ""
    return CgroupTree("v2", {"unified": root}, frozenset(offered), disk=disk)


def _leave_for_leaf(base: Path) -> bool:
    """Move this process from its control group `base` into a child group. Return whether it was moved. If `base` has
    other processes too, nothing is moved.
    """
    if cgroupfs.members({"": str(base)}) != {os.getpid()}:
        return False
    (base / _LEAF).mkdir(exist_ok=True)
    cgroupfs.write_text(str(base / _LEAF), "cgroup.procs", str(os.getpid()))
    return True


def _has_children(entry: os.DirEntry[str]) -> bool:
    """Return whether `entry` is the group of an alloc with tasks."""
    return entry.is_dir() and any(child.is_dir() for child in _entries(entry.path))


def _below(top: Path, name: str) -> Iterator[Path]:
    """Yield the groups with the name `name` in the directory `top`, and in the groups of allocs in `top`."""
    for entry in _entries(top):
        if entry.name == name:
            yield Path(entry.path)
        elif entry.is_dir():
            yield from _below(Path(entry.path), name)


def _entries(directory: str | Path) -> list[os.DirEntry[str]]:
    """Return the directory entries of a control group. Return an empty list if the group no longer exists."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
