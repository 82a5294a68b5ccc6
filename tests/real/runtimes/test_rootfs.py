"""Tests of the root file system of a container: its folders and mounts, built from a machine that a test invents."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from borglet.runtimes.oci.bundle import Mount
from borglet.runtimes.oci.rootfs import SharedRoot, build

ACCOUNT = (200_007, 200_007, [])


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    machine = tmp_path / "machine"
    for folder in ("usr/bin", "etc/ssl/certs", "etc/alternatives", "lib32"):
        (machine / folder).mkdir(parents=True)
    (machine / "bin").symlink_to("usr/bin")
    for name, text in {"resolv.conf": "nameserver 9.9.9.9", "hosts": "127.0.0.1 localhost\n", "shadow": "x"}.items():
        (machine / "etc" / name).write_text(text)
    return machine


@pytest.fixture
def shared(tmp_path: Path, machine: Path) -> SharedRoot:
    return SharedRoot(tmp_path / "roots", machine)


def built(shared: SharedRoot, machine: Path, **changed: object) -> tuple[Path, dict[str, Mount]]:
    folder = machine.parent
    fields: dict[str, object] = {
        "work": folder / "work",
        "tmp": folder / "tmp",
        "identity": folder / "identity",
        "alloc": None,
        "trees": {},
        "base": None,
        "account": ACCOUNT,
        "hosts": {},
        "machine": machine,
    }
    root, mounts = build(folder / "own", shared, **(fields | changed))  # type: ignore[arg-type]
    return root, {mount.target: mount for mount in mounts}


def test_the_machine_is_shown_as_links_and_read_only_folders(shared: SharedRoot, machine: Path) -> None:
    root, mounts = built(shared, machine)
    assert os.readlink(root / "bin") == "usr/bin"
    assert {"/usr", "/lib32", "/etc/ssl/certs", "/etc/alternatives", "/work", "/tmp", "/run/borg"} <= set(mounts)
    assert sorted(target for target, mount in mounts.items() if mount.writable) == ["/tmp", "/work"]
    assert (root / "etc" / "resolv.conf").read_text() == "nameserver 9.9.9.9"
    assert not (root / "etc" / "shadow").exists()
    for target in mounts:
        assert (root / target.lstrip("/")).exists(), f"{target} has nothing to be laid over"
    assert "task:x:200007:200007::/work:/bin/sh" in Path(mounts["/etc/passwd"].source).read_text()


def test_what_only_root_may_read_is_left_out(shared: SharedRoot, machine: Path) -> None:
    (machine / "etc" / "resolv.conf").chmod(0o600)
    root, _ = built(shared, machine)
    assert not (root / "etc" / "resolv.conf").exists()


def test_everybody_may_look_whatever_the_umask(shared: SharedRoot, machine: Path) -> None:
    before = os.umask(0o077)
    try:
        root, mounts = built(shared, machine, trees={"app": machine / "usr"})
    finally:
        os.umask(before)
    for path in (root, *root.rglob("*"), Path(mounts["/packages"].source), Path(mounts["/etc/group"].source)):
        if not path.is_symlink():
            wanted = 0o555 if path.is_dir() else 0o444
            assert stat.S_IMODE(path.stat().st_mode) & wanted == wanted, path


def test_tasks_share_a_root_until_the_machine_changes(shared: SharedRoot, machine: Path) -> None:
    first, _ = built(shared, machine)
    assert built(shared, machine)[0] == first
    assert SharedRoot(first.parent, machine).current()[0] == first, "so does the next Borglet"
    (machine / "etc" / "resolv.conf").write_text("nameserver 1.1.1.1 # another")
    second, _ = built(shared, machine)
    assert second != first
    assert (first / "etc" / "resolv.conf").read_text() == "nameserver 9.9.9.9", "who runs keeps what it has"
    shared.sweep({str(first)})
    assert sorted(first.parent.iterdir()) == sorted([first, second])
    shared.sweep(set())
    assert list(first.parent.iterdir()) == [second]


def test_an_own_address_is_in_the_hosts(shared: SharedRoot, machine: Path) -> None:
    root, mounts = built(shared, machine, hosts={"web-0": "10.1.2.3"})
    assert Path(mounts["/etc/hosts"].source).read_text() == "127.0.0.1 localhost\n10.1.2.3\tweb-0\n"
    assert "web-0" not in (root / "etc" / "hosts").read_text()


def test_a_package_as_root_shows_its_entries_and_nothing_of_the_machine(
    shared: SharedRoot, machine: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    for folder in ("opt/app", "proc", "work"):
        (base / folder).mkdir(parents=True)
    (base / "init").write_text("#!")
    (base / "bin").symlink_to("opt/app")
    root, mounts = built(shared, machine, base=base, trees={"base": base})
    assert mounts["/opt"] == Mount(str(base / "opt"), "/opt")
    assert mounts["/init"] == Mount(str(base / "init"), "/init")
    assert os.readlink(root / "bin") == "opt/app"
    assert mounts["/work"].writable
    assert "/proc" not in mounts
    assert not {"/usr", "/etc/ssl/certs"} & set(mounts)
    assert (root / "etc" / "resolv.conf").exists(), "names are the machine's where the package says nothing"


def test_a_package_with_its_own_etc_gets_the_names_of_the_machine(
    shared: SharedRoot, machine: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    (base / "etc").mkdir(parents=True)
    (base / "etc" / "passwd").write_text("app:x:1:1::/:/app\n")
    (base / "etc" / "resolv.conf").write_text("")
    _, mounts = built(shared, machine, base=base, hosts={"web-0": "10.1.2.3"})
    assert Path(mounts["/etc/resolv.conf"].source).read_text() == "nameserver 9.9.9.9"
    assert mounts["/etc"].source == str(base / "etc")
    assert not {"/etc/passwd", "/etc/hosts"} & set(mounts), "what it has no file for can't be laid over it"
