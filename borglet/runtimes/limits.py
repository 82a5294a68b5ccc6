"""What a task may use, as the kernel's numbers and as verdicts over what was measured (§6.2). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from borglet.messages import EndCause, RunTask, Usage

# Priority bands (§2.5) as this module needs them: below it nobody waits for the work.
BATCH_FLOOR = 100
# The widest range the kernel takes for cpu.shares.
MIN_SHARES, MAX_SHARES = 2, 262_144


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """`cpu_quota_milli` 0 and `ram_bytes` 0 mean no limit; `processes` counts threads too, as pids.max does."""

    ram_bytes: int
    processes: int
    cpu_shares: int
    cpu_quota_milli: int
    nice: int
    oom_score_adj: int


@dataclass(frozen=True, slots=True)
class Overuse:
    """A limit that was passed, and the figures."""

    cause: EndCause
    detail: str


def kernel_limits(task: RunTask, *, cap_cpu: bool) -> KernelLimits:
    """CPU is compressible: by default a task gets its share under contention and may use what others leave
    (§6.2: most tasks may go beyond their limit). With `cap_cpu` its limit is also a ceiling.

    Shares follow the limit; latency-sensitive tasks get eight times theirs, so that they can take their
    cores from batch, and work that nobody waits for an eighth. When the whole machine runs out of memory
    the kernel takes best effort first, prod last.
    """
    cpu = task.limit.get("cpu", 0)
    shares = cpu * 1024 // 1000
    if task.latency_sensitive:
        shares *= 8
    elif task.priority < BATCH_FLOOR:
        shares //= 8
    best_effort = task.priority < BATCH_FLOOR and not task.prod
    return KernelLimits(
        ram_bytes=task.limit.get("ram", 0),
        processes=task.max_processes,
        cpu_shares=min(MAX_SHARES, max(MIN_SHARES, shares)),
        cpu_quota_milli=cpu if cap_cpu else 0,
        nice=0 if task.latency_sensitive else 15 if best_effort else 5,
        oom_score_adj=0 if task.prod else 800 if best_effort else 400,
    )


def weight_of(shares: int) -> int:
    """cpu.shares of version 1 as cpu.weight of version 2, by the kernel's own mapping."""
    return 1 + (shares - MIN_SHARES) * 9999 // (MAX_SHARES - MIN_SHARES)


def overuse(limit: dict[str, int], max_processes: int, usage: Usage) -> Overuse | None:
    """The first limit of an incompressible resource that `usage` passes; a limit of 0 or none is no limit."""
    ram, disk = limit.get("ram", 0), limit.get("disk", 0)
    if ram and usage.ram_bytes > ram:
        return Overuse(EndCause.OUT_OF_MEMORY, f"limit {mebibytes(ram)}, used {mebibytes(usage.ram_bytes)}")
    if max_processes and usage.processes > max_processes:
        return Overuse(
            EndCause.OUT_OF_PROCESSES, f"limit {max_processes} processes and threads, found {usage.processes}"
        )
    if disk and usage.disk_bytes > disk:
        return Overuse(EndCause.OUT_OF_DISK, f"limit {mebibytes(disk)}, used {mebibytes(usage.disk_bytes)}")
    return None


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.4g} MiB"
