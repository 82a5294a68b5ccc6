"""Tests of the user ids of tenants on a machine: one per tenant, which stays the same and is never shared."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from borglet.messages import RunTask, TaskKey
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.home.taskdirs import TaskRecord
from borglet.runtimes.home.tenantusers import FILE, TenantUsers
from tests.real.runtimes.machine import a_task

FIRST, COUNT = 300_000, 8


def task_of(tenant: str, job: str = "ab") -> RunTask:
    return a_task("true", key=TaskKey(job * 16, 0, 1), name=f"aa/{tenant}/web/0")


def users(home: Path, *, first: int = FIRST, count: int = COUNT) -> TenantUsers:
    return TenantUsers(home, first=first, count=count)


def colliding(tenant: str) -> str:
    """Return another tenant for which the search for a free user id begins at the same number."""
    place = zlib.crc32(tenant.encode()) % COUNT
    return next(f"t{n}" for n in range(1000) if zlib.crc32(f"t{n}".encode()) % COUNT == place)


def test_tasks_of_one_tenant_share_a_number_and_no_other_tenant_has_it(tmp_path: Path) -> None:
    found = users(tmp_path)
    ada = found.uid_of(task_of("ada"), {})
    assert found.uid_of(task_of("ada", job="cd"), {}) == ada
    others = {found.uid_of(task_of(f"other{n}"), {}) for n in range(COUNT - 1)}
    assert {ada, *others} == set(range(FIRST, FIRST + COUNT))


def test_a_number_is_kept_when_the_last_task_has_left_and_the_borglet_starts_again(tmp_path: Path) -> None:
    ada = users(tmp_path).uid_of(task_of("ada"), {})
    again = users(tmp_path)
    assert again.uid_of(task_of(colliding("ada")), {}) != ada
    assert again.uid_of(task_of("ada"), {}) == ada


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"ada": "x"}'])
def test_without_its_file_a_tenant_keeps_the_number_of_its_running_tasks(tmp_path: Path, content: bytes | None) -> None:
    ada = users(tmp_path).uid_of(task_of("ada"), {})
    if content is None:
        (tmp_path / FILE).unlink()
    else:
        (tmp_path / FILE).write_bytes(content)
    kept = {"one": TaskRecord(task_of("ada"), 1, 0.0, own_uid=ada, runtime="process")}
    again = users(tmp_path)
    assert again.uid_of(task_of(colliding("ada")), kept) != ada
    assert again.uid_of(task_of("ada", job="cd"), kept) == ada


def test_a_number_of_a_running_container_is_nobody_elses(tmp_path: Path) -> None:
    ada = users(tmp_path).uid_of(task_of("ada"), {})
    kept = {"one": TaskRecord(task_of("eve"), 1, 0.0, own_uid=ada, runtime="oci")}
    assert users(tmp_path).uid_of(task_of("ada"), kept) != ada
    assert users(tmp_path).uid_of(task_of("eve"), kept) != ada


def test_numbers_of_tenants_without_tasks_are_used_again_when_none_is_left(tmp_path: Path) -> None:
    found = users(tmp_path)
    numbers = {f"t{n}": found.uid_of(task_of(f"t{n}"), {}) for n in range(COUNT)}
    kept = {name: TaskRecord(task_of(name), 1, 0.0, own_uid=numbers[name], runtime="process") for name in ("t0", "t1")}
    new = found.uid_of(task_of("new"), kept)
    assert new in numbers.values()
    assert new not in (numbers["t0"], numbers["t1"])
    full = {f"t{n}": TaskRecord(task_of(f"t{n}"), 1, 0.0, own_uid=FIRST + n, runtime="process") for n in range(COUNT)}
    with pytest.raises(StartFailed, match=r"all 8 user numbers .* in use"):
        users(tmp_path).uid_of(task_of("late"), full)


def test_another_range_gives_other_numbers(tmp_path: Path) -> None:
    users(tmp_path).uid_of(task_of("ada"), {})
    assert users(tmp_path, first=400_000).uid_of(task_of("ada"), {}) >= 400_000
