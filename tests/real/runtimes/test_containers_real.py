"""Tests of limits on real control groups: CPU classes, slack, whole cores and disk bandwidth, changed in place."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from borglet.messages import RunTask, Slack
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.cgroups.cgroups import CgroupTree
from borglet.runtimes.cgroups.limits import Grant
from borglet.runtimes.cgroups.system import parse_cpus
from borglet.runtimes.process import ProcessRuntime
from tests.real.runtimes.machine import MIB, Machine, key, line_of, may_limit, python

SLEEP = "import os; print(sorted(os.sched_getaffinity(0)), flush=True); import time; time.sleep(60)"
CORES = sorted(os.sched_getaffinity(0))


def tree_of(runtime: ProcessRuntime) -> CgroupTree:
    tree = runtime._runtime_home.tree
    return tree


def group(runtime: ProcessRuntime, task: RunTask, controller: str) -> Path:
    groups = tree_of(runtime).groups_of(f"{task.key.job}.{task.key.index}.{task.key.incarnation}")
    return Path(groups.get(controller) or groups["unified"])


def affinity(path: Path) -> set[int]:
    pids = (path / "cgroup.procs").read_text().split()
    return set().union(*(os.sched_getaffinity(int(pid)) for pid in pids))


def needs(runtime: ProcessRuntime, feature: str) -> bool:
    """Return whether control groups provide this feature on the machine.

    If not, its attribute says `none`, and tasks that ask for whole cores are rejected.
    """
    return runtime.attributes()[feature].startswith("cgroup-")


async def test_whole_cores_are_kept_free_of_other_latency_sensitive_tasks(machine: Machine) -> None:
    owner = python(SLEEP, key=key(1), limit={"cpu": 1000}, whole_cores=True)
    server, batch = python(SLEEP, key=key(0)), python(SLEEP, key=key(2), latency_sensitive=False)
    async with machine.runtime() as runtime:
        await runtime.start(server, run=1)
        assert await line_of(runtime, key(0)) == str(CORES)
        if not needs(runtime, "isolation.cores"):
            with pytest.raises(StartFailed, match="whole_cores: this machine cannot reserve cores"):
                await runtime.start(owner, run=1)
            return
        if len(CORES) == 1:
            with pytest.raises(StartFailed, match="the task asks for 1 core, and 0 of 1 are free"):
                await runtime.start(owner, run=1)
            return
        await runtime.start(owner, run=1)
        own = await line_of(runtime, key(1))
        assert own == str(CORES[-1:])
        assert affinity(group(runtime, server, "cpuset")) == set(CORES[:-1])
        await runtime.start(batch, run=1)
        assert await line_of(runtime, key(2)) == str(CORES)
        too_many = python(SLEEP, key=key(3), limit={"cpu": 1000 * len(CORES)}, whole_cores=True)
        with pytest.raises(StartFailed, match=f"the task asks for {len(CORES)} core"):
            await runtime.start(too_many, run=1)

    async with machine.runtime() as runtime:  # another Borglet: no task changes its cores
        await runtime.presences()
        assert affinity(group(runtime, owner, "cpuset")) == set(CORES[-1:])
        assert affinity(group(runtime, server, "cpuset")) == set(CORES[:-1])
        await runtime.resize(msgspec.structs.replace(owner, whole_cores=False))
        assert affinity(group(runtime, owner, "cpuset")) == set(CORES)
        assert affinity(group(runtime, server, "cpuset")) == set(CORES)


def quota(cpu: Path) -> str:
    """Return the CPU quota of a control group: microseconds per 100 ms, or "max" for no limit."""
    if (cpu / "cpu.max").exists():
        return (cpu / "cpu.max").read_text().split()[0]
    return (cpu / "cpu.cfs_quota_us").read_text().strip().replace("-1", "max")


def memory_limits(memory: Path) -> tuple[int, int]:
    """Return the hard and the soft memory limit of a control group in bytes."""
    names = ("memory.max", "memory.low")
    if not (memory / names[0]).exists():
        names = ("memory.limit_in_bytes", "memory.soft_limit_in_bytes")
    hard, soft = (int((memory / name).read_text()) for name in names)
    return hard, soft


def bandwidth(io: Path) -> list[str]:
    """Return the limits of reading and writing of a control group in bytes per second, or nothing without limits."""
    if (io / "io.max").exists():
        fields = (io / "io.max").read_text().split()[1:]
        return [part.partition("=")[2] for part in fields if part.startswith(("rbps=", "wbps="))]
    lines = [(io / f"blkio.throttle.{way}_bps_device").read_text().split() for way in ("read", "write")]
    return [line[1] for line in lines if line]


async def test_slack_decides_whether_a_limit_is_a_ceiling(machine: Machine) -> None:
    task = python(SLEEP, limit={"cpu": 500, "ram": 64 * MIB}, slack=Slack(cpu=False))
    async with machine.runtime() as runtime:
        await runtime.start(task, run=1)
        await line_of(runtime)
        if not needs(runtime, "isolation.cpu_quota") or not needs(runtime, "isolation.memory"):
            assert machine.settings.isolation == "polled" or not may_limit()
            return
        tree = tree_of(runtime)
        cpu, memory = group(runtime, task, "cpu"), group(runtime, task, "memory")
        assert quota(cpu) == "50000"
        await runtime.resize(msgspec.structs.replace(task, slack=Slack(ram=True)))
        assert quota(cpu) == "max"
        await runtime.adjust({key(): Grant(cpu_milli=700)}, batch_milli=300)
        assert quota(cpu) == "70000"
        root = tree.roots["cpu" if tree.version == "v1" else "unified"]
        together = root.with_name(root.name + "-batch")
        assert quota(together) == "30000"
        idle = together / "cpu.idle"
        assert not idle.exists() or idle.read_text() == "1\n"
        await runtime.adjust({key(): Grant(ram_bytes=100 * MIB)}, batch_milli=0, batch_idle=False)
        assert not idle.exists() or idle.read_text() == "0\n"
        assert memory_limits(memory) == (100 * MIB, 64 * MIB)
        assert quota(cpu) == quota(together) == "max"

    async with machine.runtime() as runtime:  # the next Borglet does not reclaim cores that may be in use
        await runtime.presences()
        assert memory_limits(memory) == (100 * MIB, 64 * MIB)


async def test_disk_bandwidth_is_limited_and_changed_in_place(machine: Machine) -> None:
    task = python(SLEEP, limit={"disk_bandwidth": 5_000_000})
    async with machine.runtime() as runtime:
        await runtime.start(task, run=1)
        await line_of(runtime)
        if not needs(runtime, "isolation.disk_bandwidth"):
            return
        io = group(runtime, task, "blkio")
        assert bandwidth(io) == ["5000000", "5000000"]
        await runtime.resize(msgspec.structs.replace(task, limit={}))
        assert set(bandwidth(io)) <= {"max"}


READ = """
import mmap, os, sys, time
file = os.open('f', os.O_RDWR | os.O_CREAT | os.O_DIRECT)
block = mmap.mmap(-1, 2**20)
began = time.monotonic()
for _ in range(6):
    os.write(file, block)
print(time.monotonic() - began, flush=True)
time.sleep(60)
"""


async def test_a_disks_bandwidth_holds(machine: Machine) -> None:
    """Write six MiB with a limit of four MiB/s. It must take more than one second.

    The program uses direct I/O, because control groups of version 1 do not count writes through the page cache.
    """
    async with machine.runtime() as runtime:
        await runtime.start(python(READ, limit={"disk_bandwidth": 4 * MIB}), run=1)
        if needs(runtime, "isolation.disk_bandwidth"):
            assert float(await line_of(runtime)) > 1.0


async def test_a_task_without_cores_to_share_is_refused(machine: Machine) -> None:
    everything = python(SLEEP, key=key(0), limit={"cpu": 1000 * len(CORES)}, whole_cores=True)
    async with machine.runtime() as runtime:
        if not needs(runtime, "isolation.cores"):
            return
        await runtime.start(everything, run=1)
        assert parse_cpus((group(runtime, everything, "cpuset") / "cpuset.cpus").read_text()) == frozenset(CORES)
        with pytest.raises(StartFailed, match="whole_cores: 1 other tasks reserve all"):
            await runtime.start(python(SLEEP, key=key(1)), run=1)
        await runtime.start(python(SLEEP, key=key(2), latency_sensitive=False), run=1)
        await line_of(runtime, key(2))
