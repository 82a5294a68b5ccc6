"""Limit and measure one task with a control group of version 2, one directory for all controllers."""

from __future__ import annotations

from collections.abc import Collection

from borglet.runtimes.cgroups import cgroupfs
from borglet.runtimes.cgroups.cgroupfs import Groups
from borglet.runtimes.cgroups.limits import MIN_SHARES, KernelLimits, weight_of
from borglet.runtimes.cgroups.system import format_cpus
from borglet.runtimes.cgroups.v1 import PERIOD_US, GroupUsage, make_idle, quota_us, write_where_present

CONTROLLERS = ("memory", "cpu", "pids", "cpuset", "io")


def limit(directory: str, limits: KernelLimits, controllers: Collection[str], *, disk: str) -> list[str]:
    """Write all limits of a task. Return an empty list, because version 2 rejects no limit. Raises OSError if a write
    fails.
    """
    if "memory" in controllers:
        cgroupfs.write_text(directory, "memory.max", str(limits.ram_bytes or "max"))
        # Memory above this value is reclaimed first, and memory below it last.
        write_where_present(directory, "memory.low", str(limits.ram_soft_bytes))
        write_where_present(directory, "memory.swap.max", "0")
        write_where_present(directory, "memory.oom.group", "1")
    if "cpu" in controllers:
        weigh(directory, limits.cpu_shares, idle=limits.cpu_idle)
        cap(directory, limits.cpu_quota_milli)
    if "pids" in controllers:
        cgroupfs.write_text(directory, "pids.max", str(limits.processes or "max"))
    if "cpuset" in controllers:
        pin(directory, limits.cpus)
    if "io" in controllers:
        write_where_present(directory, "io.weight", f"default {limits.io_weight}")
        write_where_present(directory, "io.bfq.weight", f"default {limits.io_weight}")
        if disk:
            bps = limits.disk_bps or "max"
            write_where_present(directory, "io.max", f"{disk} rbps={bps} wbps={bps}")
    return []


def open_to_children(directory: str, controllers: Collection[str]) -> None:
    """Enable `controllers` for the child groups of the group `directory`. Raises OSError if the kernel rejects a
    controller.
    """
    enable = " ".join(f"+{controller}" for controller in sorted(controllers))
    cgroupfs.write_text(directory, "cgroup.subtree_control", enable)


def weigh(directory: str, shares: int, *, idle: bool) -> None:
    """Set the CPU weight of a group. `idle`: use the idle class, or on kernels without it the smallest weight."""
    if not make_idle(directory, idle):
        cgroupfs.write_text(directory, "cpu.weight", str(weight_of(MIN_SHARES if idle else shares)))


def cap(directory: str, milli: int) -> None:
    """Limit the CPU of the group to `milli` milli-cores; 0 for no limit."""
    write_where_present(directory, "cpu.max", f"{quota_us(milli) or 'max'} {PERIOD_US}")


def pin(directory: str, cpus: frozenset[int]) -> None:
    """Restrict the group to these cores; an empty set means all."""
    write_where_present(directory, "cpuset.cpus", format_cpus(cpus) or "\n")


def measure(groups: Groups, controllers: Collection[str]) -> GroupUsage:
    directory = groups["unified"]
    memory = cgroupfs.read_fields(directory, "memory.stat")
    spent = cgroupfs.read_fields(directory, "cpu.stat")
    cpu = spent.get("usage_usec")
    return GroupUsage(
        cpu_ns=None if cpu is None else cpu * 1000,
        ram_bytes=memory["anon"] + memory["shmem"] if memory else None,
        processes=int(cgroupfs.read_text(directory, "pids.current")) if "pids" in controllers else None,
        throttled_ns=1000 * spent.get("throttled_usec", 0),
        cached_bytes=max(0, memory.get("file", 0) - memory.get("shmem", 0)),
        oom_kills=cgroupfs.oom_kills(groups),
    )
