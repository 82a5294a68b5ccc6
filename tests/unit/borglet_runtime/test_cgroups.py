"""Detection and limits on drawn trees of both versions; the kernel's own is used by the tests of real processes."""

from __future__ import annotations

from pathlib import Path

from borglet.runtimes.cgroups import CgroupTree, Measured, detect
from borglet.runtimes.limits import KernelLimits

LIMITS = KernelLimits(
    ram_bytes=64 * 2**20, processes=50, cpu_shares=1024, cpu_quota_milli=250, nice=5, oom_score_adj=0
)


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
    assert detect(tmp_path, proc=proc) is None
    assert detect(tmp_path, proc=tmp_path / "absent") is None


def test_version_two_is_taken_where_it_has_memory_and_limits_by_its_files(tmp_path: Path) -> None:
    own = draw(
        tmp_path / "cg" / "unit",
        cgroup__controllers="cpu io memory pids",
        cgroup__subtree_control="",
        cgroup__procs="",
    )
    mount = f"30 20 0:26 / {tmp_path}/cg rw,nosuid shared:4 - cgroup2 cgroup2 rw"
    tree = detect(tmp_path, proc=proc_of(tmp_path, "0::/unit\n", mount))
    assert tree is not None
    assert tree.isolation()["isolation.memory"] == "cgroup-v2"
    assert tree.isolation()["isolation.processes"] == "cgroup-v2"
    assert read(own, "cgroup.subtree_control") == "+cpu +memory +pids"
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
    assert tree.measure({"unified": str(group)}) == Measured(
        cpu_ns=5000, ram_bytes=120, processes=3, throttled_ns=2000
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
    assert tree is not None
    assert tree.isolation() == {
        "isolation.memory": "polled",
        "isolation.cpu": "none",
        "isolation.cpu_quota": "none",
        "isolation.processes": "cgroup-v1",
    }


def test_a_containers_mount_of_its_own_subtree_is_understood(tmp_path: Path) -> None:
    draw(tmp_path / "m" / "inner", cgroup__controllers="memory", cgroup__procs="", cgroup__subtree_control="")
    mount = f"30 20 0:26 /docker/x {tmp_path}/m rw - cgroup2 cgroup2 rw"
    tree = detect(tmp_path, proc=proc_of(tmp_path, "0::/docker/x/inner\n", mount))
    assert tree is not None
    assert tree.roots["unified"].parent == tmp_path / "m" / "inner"
    assert tree.isolation()["isolation.cpu"] == "none"


def test_a_limit_the_kernel_refuses_is_reported(tmp_path: Path) -> None:
    group = draw(tmp_path / "memory" / "t")
    (group / "memory.limit_in_bytes").mkdir()  # any OSError will do
    tree = CgroupTree("v1", {"memory": tmp_path / "memory"}, frozenset({"memory"}))
    (refused,) = tree.limit({"memory": str(group)}, LIMITS)
    assert refused.startswith("memory.limit_in_bytes=67108864: ")


def test_sweep_removes_only_empty_groups_of_nobody(tmp_path: Path) -> None:
    root = draw(tmp_path / "pids")
    (root / "kept").mkdir()
    (root / "left").mkdir()
    draw(root / "busy", cgroup__procs="1")
    CgroupTree("v1", {"pids": root}, frozenset({"pids"})).sweep({"kept"})
    assert sorted(entry.name for entry in root.iterdir()) == ["busy", "kept"]
