"""Tests of control groups of versions 1 and 2, with a tree of plain files in place of the kernel's.

Tests of real processes use the kernel's own tree.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from borglet.runtimes.cgroups import cgroupfs, v1
from borglet.runtimes.cgroups.cgroups import CgroupTree, GroupUsage, detect
from borglet.runtimes.cgroups.limits import KernelLimits
from borglet.runtimes.cgroups.system import disk_of, own_groups
from borglet.runtimes.supervisor.exit_record import out_of_memory
from tests.real.runtimes.machine import may_limit

LIMITS = KernelLimits(ram_bytes=64 * 2**20, processes=50, cpu_shares=1024, cpu_quota_milli=250, nice=5, oom_score_adj=0)


def draw(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def read(directory: Path, name: str) -> str:
    return (directory / name).read_text()


def proc_of(tmp_path: Path, cgroup: str, *mounts: str) -> Path:
    return draw(tmp_path / "proc", cgroup=cgroup, mountinfo="".join(mount + "\n" for mount in mounts))


def test_nothing_is_claimed_where_nothing_is_mounted(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, "0::/\n", "1 2 0:3 / / rw - ext4 /dev/vda rw")
    assert detect(tmp_path, proc=proc).roots == {}
    assert detect(tmp_path, proc=tmp_path / "absent").roots == {}


def test_version_two_is_taken_where_it_has_memory_and_limits_by_its_files(tmp_path: Path) -> None:
    own = draw(
        tmp_path / "cg" / "unit", cgroup__controllers="cpu io memory pids", cgroup__subtree_control="", cgroup__procs=""
    )
    mount = f"30 20 0:26 / {tmp_path}/cg rw,nosuid shared:4 - cgroup2 cgroup2 rw"
    tree = detect(tmp_path, proc=proc_of(tmp_path, "0::/unit\n", mount))
    assert tree.isolation()["isolation.memory"] == "cgroup-v2"
    assert tree.isolation()["isolation.processes"] == "cgroup-v2"
    assert read(own, "cgroup.subtree_control") == "+cpu +io +memory +pids"
    group = draw(tree.roots["unified"] / "t", memory__oom__group="0", cpu__max="max 100000")
    assert group.parent.parent == own
    tree.create("t", LIMITS)
    assert read(group, "memory.max") == str(64 * 2**20)
    assert read(group, "memory.oom.group") == "1"
    assert read(group, "cpu.weight") == "39"
    assert read(group, "cpu.max") == "25000 100000"
    assert read(group, "pids.max") == "50"
    assert not (group / "memory.swap.max").exists()
    draw(
        group,
        memory__stat="anon 100\nfile 7000\nshmem 20\n",
        cpu__stat="usage_usec 5\nthrottled_usec 2\n",
        pids__current="3\n",
    )
    assert tree.measure({"unified": str(group)}) == GroupUsage(
        cpu_ns=5000, ram_bytes=120, processes=3, throttled_ns=2000, cached_bytes=6980
    )


def test_version_two_without_memory_is_passed_over_for_version_one(tmp_path: Path) -> None:
    draw(tmp_path / "u", cgroup__controllers="hugetlb")
    draw(tmp_path / "pids" / "a")
    mounts = [
        f"30 20 0:26 / {tmp_path}/u rw - cgroup2 cgroup2 rw",
        f"31 20 0:27 / {tmp_path}/pids rw - cgroup cgroup rw,pids",
    ]
    proc = proc_of(tmp_path, "5:pids:/a\n0::/\n", *mounts)
    detect(tmp_path, proc=proc)  # makes borg-…, where a kernel would put the files
    (root,) = (tmp_path / "pids" / "a").iterdir()
    draw(root, pids__max="max")
    tree = detect(tmp_path, proc=proc)
    assert tree.isolation() == {
        "isolation.memory": "polled",
        "isolation.cpu": "none",
        "isolation.cpu_classes": "weights",
        "isolation.cpu_quota": "none",
        "isolation.cores": "none",
        "isolation.processes": "cgroup-v1",
        "isolation.disk_bandwidth": "none",
    }


def test_a_containers_mount_of_its_own_subtree_is_understood(tmp_path: Path) -> None:
    draw(tmp_path / "m" / "inner", cgroup__controllers="memory", cgroup__procs="", cgroup__subtree_control="")
    mount = f"30 20 0:26 /docker/x {tmp_path}/m rw - cgroup2 cgroup2 rw"
    tree = detect(tmp_path, proc=proc_of(tmp_path, "0::/docker/x/inner\n", mount))
    assert tree.roots["unified"].parent == tmp_path / "m" / "inner"
    assert tree.isolation()["isolation.cpu"] == "none"


def test_a_limit_the_kernel_refuses_is_reported(tmp_path: Path) -> None:
    group = draw(tmp_path / "memory" / "t")
    (group / "memory.limit_in_bytes").mkdir()  # any OSError will do
    tree = CgroupTree("v1", {"memory": tmp_path / "memory"}, frozenset({"memory"}))
    (refused,) = tree.limit({"memory": str(group)}, LIMITS)
    assert refused.startswith("cannot write 67108864 to control-group file memory.limit_in_bytes: ")


def test_sweep_removes_only_empty_groups_of_nobody(tmp_path: Path) -> None:
    root = draw(tmp_path / "pids")
    (root / "kept").mkdir()
    (root / "left").mkdir()
    draw(root / "busy", cgroup__procs="1")
    CgroupTree("v1", {"pids": root}, frozenset({"pids"})).sweep({"kept"})
    assert sorted(entry.name for entry in root.iterdir()) == ["busy", "kept"]


def version_two(tmp_path: Path, controllers: str = "cpu cpuset io memory pids", disk: str = "8:0") -> CgroupTree:
    """Return a tree of version 2 whose groups have the files that a kernel would create."""
    root = tmp_path / "root"
    for directory in (root, tmp_path / "root-batch"):
        draw(directory, cpu__max="max 100000", cpu__idle="0")
    return CgroupTree("v2", {"unified": root}, frozenset(controllers.split()), disk=disk)


def group_files(directory: Path) -> Path:
    files = ("cpu.max", "cpu.idle", "cpu.weight", "cpuset.cpus", "io.max", "io.weight", "memory.low")
    return draw(directory, **{name.replace(".", "__"): "" for name in files})


def test_version_two_knows_classes_cores_and_disks(tmp_path: Path) -> None:
    tree = version_two(tmp_path)
    assert set(tree.isolation().values()) == {"cgroup-v2"}
    serving = group_files(tmp_path / "root" / "web")
    tree.create("web", replace(LIMITS, cpus=frozenset({0, 2, 3}), disk_bps=10**6, ram_soft_bytes=2**20))
    assert read(serving, "cpuset.cpus") == "0,2-3"
    assert read(serving, "io.max") == "8:0 rbps=1000000 wbps=1000000"
    assert read(serving, "memory.low") == str(2**20)
    assert (read(serving, "cpu.idle"), read(serving, "cpu.weight")) == ("0", "39")
    assert tree.cores_of({"unified": str(serving)}) == {0, 2, 3}

    batch = group_files(tmp_path / "root-batch" / "sum")
    groups = tree.create("sum", replace(LIMITS, batch=True, cpu_idle=True))
    assert groups == {"unified": str(batch)} == tree.groups_of("sum")
    assert (read(batch, "cpu.idle"), read(batch, "cpu.weight")) == ("1", "")
    assert read(batch, "io.max") == "8:0 rbps=max wbps=max"
    tree.limit_batch(500, idle=True)
    assert read(tmp_path / "root-batch", "cpu.max") == "50000 100000"
    tree.limit_batch(0, idle=False)
    assert read(tmp_path / "root-batch", "cpu.max") == "max 100000"


def test_without_an_idle_class_the_smallest_weight_takes_its_place(tmp_path: Path) -> None:
    root = draw(tmp_path / "cpu")
    tree = CgroupTree("v1", {"cpu": root}, frozenset({"cpu"}))
    assert tree.isolation()["isolation.cpu_classes"] == "weights"
    tree.create("sum", replace(LIMITS, batch=True, cpu_idle=True))
    assert read(tmp_path / "cpu-batch" / "sum", "cpu.shares") == "2"


def test_sweep_and_removal_reach_the_groups_of_batch(tmp_path: Path) -> None:
    root = draw(tmp_path / "cpu")
    for name in ("kept", "left"):
        (tmp_path / "cpu-batch" / name).mkdir(parents=True)
    tree = CgroupTree("v1", {"cpu": root}, frozenset({"cpu"}))
    tree.sweep({"kept"})
    assert [entry.name for entry in (tmp_path / "cpu-batch").iterdir()] == ["kept"]
    tree.sweep(set())
    tree.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_is_limited_as_a_whole_and_others_not_at_all(tmp_path: Path) -> None:
    number = os.stat(tmp_path).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    assert disk_of(tmp_path, devices=tmp_path / "none") == ""
    disk = draw(tmp_path / "devices" / "sda", dev="8:0\n")
    partition = draw(disk / "sda1", dev="8:1\n", partition="1\n")
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / name).symlink_to(partition)
    assert disk_of(tmp_path, devices=tmp_path / "block") == "8:0"


V1 = {"memory.limit_in_bytes": f"{64 * 2**20}", "memory.oom_control": "oom_kill_disable 0\noom_kill 2"}
V2 = {"memory.max": f"{64 * 2**20}", "memory.events": "oom 9\noom_kill 2"}


@pytest.mark.parametrize(
    ("controller", "files", "counter", "reached"),
    [
        ("memory", V1, "memory.failcnt", ("0", "7")),
        ("unified", V2, "memory.events.local", ("oom 0\noom_kill 2", "oom 1\noom_kill 2")),
    ],
)
def test_a_task_that_ran_out_of_memory_is_distinguished(
    tmp_path: Path, controller: str, files: dict[str, str], counter: str, reached: tuple[str, str]
) -> None:
    """Record a reached memory limit in a task's group, or in its alloc's. The cause is then the task's own limit.

    If neither limit was reached, the cause is that the machine ran out of memory. The kernel's kill counters are the
    same in all these cases.
    """
    group = tmp_path / "envelope" / "task"
    group.mkdir(parents=True)
    groups, (never, once) = {controller: str(group)}, reached
    for name, text in (files | {counter: never}).items():
        (group / name).write_text(text)
    (group.parent / counter).write_text(never)
    short = "the machine ran out of memory: the kernel killed 2 of the task's processes; the task's RAM limit is 64 MiB"
    detail = "the task's RAM limit is 64 MiB; the kernel killed 2 of the task's processes; raise the RAM limit"
    own = {"cause": "out-of-memory", "detail": detail}
    assert out_of_memory(groups, ram_limit=0) == {"cause": "machine-short", "detail": short}
    for at in (group.parent, group):
        (at / counter).write_text(once)
        assert out_of_memory(groups, ram_limit=0) == own
        (at / counter).write_text(never)


def test_the_peak_tells_where_the_kernel_counts_no_failures(tmp_path: Path) -> None:
    """Check that a peak at the limit counts as out of memory. Linux 6.18 counts no failures at a limit with swap."""
    group = tmp_path / "envelope" / "task"
    group.mkdir(parents=True)
    for name, text in (V1 | {"memory.failcnt": "0"}).items():
        (group / name).write_text(text)
    (group.parent / "memory.limit_in_bytes").write_text(f"{48 * 2**20}")
    peak, whose = group.parent / "memory.max_usage_in_bytes", {"memory": str(group)}
    peak.write_text(f"{40 * 2**20}")
    assert out_of_memory(whose, ram_limit=0)["cause"] == "machine-short"
    peak.write_text(f"{48 * 2**20 - 4096}")
    assert out_of_memory(whose, ram_limit=0)["cause"] == "out-of-memory"


def test_a_group_without_its_memory_measures_no_memory(tmp_path: Path) -> None:
    """Measure a group of version 1 whose memory part is already removed, because the parts are removed one by one."""
    spent, processes = (draw(tmp_path / "cpuacct", cpuacct__usage="7"), draw(tmp_path / "pids", pids__current="1"))
    groups = {"cpuacct": str(spent), "memory": str(tmp_path / "gone"), "pids": str(processes)}
    assert v1.measure(groups) == GroupUsage(cpu_ns=7, ram_bytes=None, processes=1)


@contextmanager
def coming_and_going(*directories: str) -> Iterator[None]:
    """Create and remove these groups in another process, without pause, until the block ends."""
    remover = os.fork()
    if remover == 0:  # no code of the test may run in this process
        try:
            while True:
                for directory in directories:
                    os.mkdir(directory)
                    os.rmdir(directory)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(remover, signal.SIGKILL)
        os.waitpid(remover, 0)
        assert cgroupfs.remove({each: each for each in directories})


def looks() -> Iterator[int]:
    """Yield a counter for half a second, and at least twelve times."""
    deadline = time.monotonic() + 0.5
    yield from takewhile(lambda count: count < 12 or time.monotonic() < deadline, itertools.count())


@pytest.mark.skipif(not may_limit(), reason="only root may make control groups, on any machine")
def test_a_group_may_be_removed_while_its_files_are_read() -> None:
    """Read files of groups that another process removes. An open file of a removed group fails with a special error.

    Without the handling of that error, about one of fifteen reads failed.
    """
    own, name = own_groups(Path("/proc/self")), f"borg-removed-{os.getpid()}"
    groups = {each: str(own[each] / name) for each in ("memory", "pids", "unified") if each in own}
    with coming_and_going(*groups.values()):
        for _ in looks():
            assert cgroupfs.members(groups) == cgroupfs.kill(groups) == set()
            assert (cgroupfs.oom_kills(groups), cgroupfs.peak_memory(groups)) == (0, 0)


@pytest.mark.skipif(not may_limit(), reason="only root may make control groups, on any machine")
def test_groups_may_be_removed_while_others_are_looked_for(tmp_path: Path) -> None:
    """Look through all groups, as a failed start and a restarted Borglet do, while another process removes groups.

    Without the handling of that case, about one of forty searches failed.
    """
    tree = detect(tmp_path)
    groups = [str(root / "others.0.1") for root in tree.roots.values()]
    with coming_and_going(*groups):
        for _ in looks():
            wanted = {controller: str(root / "mine.0.1") for controller, root in tree.roots.items()}
            assert tree.groups_of("mine.0.1") == wanted
            tree.sweep({"others.0.1"})
    tree.remove()
