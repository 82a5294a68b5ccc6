"""Limit and measure one task with control groups of version 1, which has one directory per controller."""

from __future__ import annotations

import os
from dataclasses import dataclass

from borglet.runtimes.cgroups import cgroupfs
from borglet.runtimes.cgroups.cgroupfs import Groups
from borglet.runtimes.cgroups.limits import MIN_SHARES, KernelLimits
from borglet.runtimes.cgroups.system import format_cpus

PERIOD_US = 100_000
# Controller -> a file that exists only if the controller has the needed feature.
FILES = {
    "memory": "memory.limit_in_bytes",
    "cpu": "cpu.shares",
    "cpuacct": "cpuacct.usage",
    "pids": "pids.max",
    "cpuset": "cpuset.cpus",
    "blkio": "blkio.throttle.read_bps_device",
    "devices": "devices.deny",
}
_UNLIMITED = "-1"


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """The usage of one task, from its control groups. A field is None if the groups do not measure it.

    `cpu_ns`: CPU time since the groups were made. `ram_bytes`: used memory without page cache. `throttled_ns`: time for
    which the CPU quota stopped the threads, summed over cores. `oom_kills`: processes that the kernel killed to free
    memory.
    """

    cpu_ns: int | None
    ram_bytes: int | None
    processes: int | None
    throttled_ns: int = 0
    cached_bytes: int = 0
    oom_kills: int = 0


def limit(groups: Groups, limits: KernelLimits, *, disk: str) -> list[str]:
    """Write all limits of a task. Return a text per memory limit that the kernel rejected. Raises OSError if another
    write fails.
    """
    refused = []
    if directory := groups.get("memory"):
        refused = bound_memory(directory, limits.ram_bytes)
        write_where_present(directory, "memory.soft_limit_in_bytes", str(limits.ram_soft_bytes or _UNLIMITED))
    if directory := groups.get("cpu"):
        weigh(directory, limits.cpu_shares, idle=limits.cpu_idle)
        cap(directory, limits.cpu_quota_milli)
    if directory := groups.get("pids"):
        cgroupfs.write_text(directory, "pids.max", str(limits.processes or "max"))
    if directory := groups.get("cpuset"):
        pin(directory, limits.cpus)
    if directory := groups.get("blkio"):
        write_where_present(directory, "blkio.bfq.weight", str(limits.io_weight))
        if disk:
            for way in ("read", "write"):
                name = f"blkio.throttle.{way}_bps_device"
                cgroupfs.write_text(directory, name, f"{disk} {limits.disk_bps}")
    return refused


def weigh(directory: str, shares: int, *, idle: bool) -> None:
    """Set the CPU weight of a group. `idle`: use the idle class, or on kernels without it the smallest weight."""
    if not make_idle(directory, idle):
        cgroupfs.write_text(directory, "cpu.shares", str(MIN_SHARES if idle else shares))


def make_idle(directory: str, idle: bool) -> bool:
    """Move a group into the kernel's idle class, or out of it. Return whether the group is now in the idle class; old
    kernels have no such class.
    """
    if not os.path.exists(os.path.join(directory, "cpu.idle")):
        return False
    cgroupfs.write_text(directory, "cpu.idle", str(int(idle)))
    return idle


def cap(directory: str, milli: int) -> None:
    """Limit the CPU of the group to `milli` milli-cores; 0 for no limit."""
    write_where_present(directory, "cpu.cfs_period_us", str(PERIOD_US))
    write_where_present(directory, "cpu.cfs_quota_us", str(quota_us(milli) or -1))


def measure(groups: Groups) -> GroupUsage:
    cpu_ns = ram = processes = None
    throttled_ns = cached = 0
    if directory := groups.get("cpuacct"):
        cpu_ns = int(cgroupfs.read_text(directory, "cpuacct.usage"))
    if directory := groups.get("cpu"):
        throttled_ns = cgroupfs.read_fields(directory, "cpu.stat").get("throttled_time", 0)
    if directory := groups.get("memory"):
        stat = cgroupfs.read_fields(directory, "memory.stat")
        shared = stat.get("total_shmem", 0)
        ram = stat["total_rss"] + shared if stat else None  # the group may be removed meanwhile
        cached = max(0, stat.get("total_cache", 0) - shared)
    if directory := groups.get("pids"):
        processes = int(cgroupfs.read_text(directory, "pids.current"))
    return GroupUsage(cpu_ns, ram, processes, throttled_ns, cached, cgroupfs.oom_kills(groups))


def quota_us(milli: int) -> int:
    """Return the CPU time, in microseconds, that a group with `milli` milli-cores may use per quota period; 0 for no
    quota.
    """
    return max(1000, milli * PERIOD_US // 1000) if milli else 0


def write_where_present(directory: str, name: str, value: str) -> None:
    if os.path.exists(os.path.join(directory, name)):
        cgroupfs.write_text(directory, name, value)


def open_cpuset(directory: str) -> None:
    """Give a new group the cores and memory nodes of its parent. Without them, the group accepts no process."""
    above = os.path.dirname(directory)
    for name in ("cpuset.mems", "cpuset.cpus"):
        if not cgroupfs.read_text(directory, name).strip():
            cgroupfs.write_text(directory, name, cgroupfs.read_text(above, name).strip())


def pin(directory: str, cpus: frozenset[int]) -> None:
    """Restrict the group to these cores; an empty set means all."""
    open_cpuset(directory)
    wanted = format_cpus(cpus) or cgroupfs.read_text(os.path.dirname(directory), "cpuset.cpus").strip()
    if cgroupfs.read_text(directory, "cpuset.cpus").strip() != wanted:  # because a write is slow in the kernel
        cgroupfs.write_text(directory, "cpuset.cpus", wanted)


def bound_memory(directory: str, ram_bytes: int) -> list[str]:
    """Set the memory limit; 0 for none. Return a text per write that the kernel rejected.

    The kernel has a limit of memory, and may have a second limit of memory plus swap. The first must never exceed the
    second, so the order of the two writes depends on the values.
    """
    value = str(ram_bytes) if ram_bytes else _UNLIMITED
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
            refused.append(f"cannot write {value} to control-group file {name}: {error.strerror}")
    return refused
