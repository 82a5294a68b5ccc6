"""Compute the limits of a task for the kernel, and compare measured usage with limits (§6.2).

RunTask (limit, class, priority, slack)      ─┐
Grant (present ceilings of the control loop) ─┼─ kernel_limits ─► KernelLimits ─► cgroups.py
cores (a latency-sensitive task's cpuset)    ─┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from borglet.messages import EndCause, RunTask, Usage
from borglet.runtimes.cgroups.cgroupfs import mebibytes

# Tasks below this priority are best effort (§2.5).
BATCH_FLOOR = 100
# The range that the kernel accepts for cpu.shares.
MIN_SHARES, MAX_SHARES = 2, 262_144
# Weights of disk bandwidth, if the disk's scheduler supports them: latency-sensitive, batch, best effort.
IO_WEIGHTS = (500, 100, 10)


@dataclass(frozen=True, slots=True)
class Grant:
    """The temporary limits of one task, set by the Borglet's control loop. They replace the task's usual limits.

    `cpu_milli`: the largest CPU usage of a task with CPU slack, which may use more than its usual limit; 0: no
    temporary limit. `ram_bytes`: the same for memory and a task with memory slack.
    """

    cpu_milli: int = 0
    ram_bytes: int = 0


NO_GRANT = Grant()


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """The limits of one task for the kernel. 0 in `cpu_quota_milli`, `ram_bytes` and `disk_bps` means no limit.

    `processes` includes threads. `batch`: the task gets only CPU that no latency-sensitive task needs. `cpu_idle`: the
    task gets only CPU that no batch task needs either. The kernel first reclaims memory above `ram_soft_bytes`. `cpus`:
    the cores that the task may use, empty for all. `disk_bps` limits reads and, separately, writes.
    """

    ram_bytes: int
    processes: int
    cpu_shares: int
    cpu_quota_milli: int
    nice: int
    oom_score_adj: int
    batch: bool = False
    cpu_idle: bool = False
    ram_soft_bytes: int = 0
    cpus: frozenset[int] = frozenset()
    disk_bps: int = 0
    io_weight: int = IO_WEIGHTS[1]


@dataclass(frozen=True, slots=True)
class Overuse:
    """A limit that a task exceeded. `detail`: a text with the limit and the usage."""

    cause: EndCause
    detail: str


def is_best_effort(task: RunTask) -> bool:
    """Return whether a task has the lowest class, best effort."""
    return task.priority < BATCH_FLOOR and not task.prod


def kernel_limits(task: RunTask, *, grant: Grant = NO_GRANT, cpus: frozenset[int] = frozenset()) -> KernelLimits:
    """Return the kernel's limits for a task. CPU is compressible: a task may use idle CPU above its limit (§6.2).

    If `task.slack` does not include CPU, the task cannot use more CPU than its limit. Within one class, CPU shares are
    proportional to the limit. Latency-sensitive tasks come before batch tasks if the kernel has an idle class;
    otherwise they get eight times the shares. If memory runs out, the kernel kills best-effort tasks first and
    production tasks last.
    """
    cpu, ram = task.limit.get("cpu", 0), task.limit.get("ram", 0)
    shares = cpu * 1024 // 1000
    best_effort = is_best_effort(task)
    if task.latency_sensitive:
        shares *= 8
    elif task.priority < BATCH_FLOOR:
        shares //= 8
    quotas = [quota for quota in (0 if task.slack.cpu else cpu, grant.cpu_milli) if quota]
    return KernelLimits(
        ram_bytes=ceiling(task, grant).get("ram", 0),
        processes=task.max_processes,
        cpu_shares=min(MAX_SHARES, max(MIN_SHARES, shares)),
        cpu_quota_milli=min(quotas, default=0),
        nice=0 if task.latency_sensitive else 15 if best_effort else 5,
        oom_score_adj=0 if task.prod else 800 if best_effort else 400,
        batch=not task.latency_sensitive,
        cpu_idle=best_effort and not task.latency_sensitive,
        ram_soft_bytes=ram,
        cpus=cpus,
        disk_bps=task.limit.get("disk_bandwidth", 0),
        io_weight=IO_WEIGHTS[0 if task.latency_sensitive else 2 if best_effort else 1],
    )


def ceiling(task: RunTask, grant: Grant = NO_GRANT) -> dict[str, int]:
    """Return, by resource, the limits beyond which the Borglet ends the task. A task with memory slack may use more
    memory than its usual limit, as far as `grant` allows.
    """
    if not task.slack.ram or not task.limit.get("ram"):
        return task.limit
    return {**task.limit, "ram": max(task.limit["ram"], grant.ram_bytes)}


def weight_of(shares: int) -> int:
    """Convert cpu.shares of version 1 to cpu.weight of version 2, by the formula of the kernel."""
    return 1 + (shares - MIN_SHARES) * 9999 // (MAX_SHARES - MIN_SHARES)


def overuse(limit: Mapping[str, int], max_processes: int, usage: Usage) -> Overuse | None:
    """Return the first limit that `usage` exceeds, except CPU; None if there is none. A limit of 0 means unlimited."""
    ram, disk = limit.get("ram", 0), limit.get("disk", 0)
    if ram and usage.ram_bytes > ram:
        return Overuse(EndCause.OUT_OF_MEMORY, format_overuse("RAM", ram, usage.ram_bytes))
    if max_processes and usage.processes > max_processes:
        return Overuse(
            EndCause.OUT_OF_PROCESSES,
            f"the task had {usage.processes} processes and threads, and its limit is {max_processes}; start fewer"
            " processes",
        )
    if disk and usage.disk_bytes > disk:
        return Overuse(EndCause.OUT_OF_DISK, format_overuse("disk", disk, usage.disk_bytes))
    return None


def format_overuse(resource: str, limit: int, used: int) -> str:
    """Return the reason of the end of a task that used more than its limit of RAM or disk. The amounts are in bytes."""
    figures = f"the task used {mebibytes(used)} of {resource}, and its limit is {mebibytes(limit)}"
    return f"{figures}; raise the {resource} limit"
