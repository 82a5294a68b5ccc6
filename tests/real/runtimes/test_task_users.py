"""Tests of the user that a task runs as: not root by default, and only a user that the operator allows."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from borglet.runtimes.base import task_users
from borglet.runtimes.base.runtime import StartFailed
from tests.real.runtimes.machine import Machine, a_task, end_of, key, may_limit, text_of


def test_a_borglet_that_is_not_root_runs_tasks_as_itself() -> None:
    assert task_users.account_of("", default="", allowed=()) is None


def test_one_that_does_not_exist_is_named() -> None:
    with pytest.raises(StartFailed, match="user: 'nosuchuser' does not exist"):
        task_users.account_of("nosuchuser", default="", allowed={"nosuchuser"})


@pytest.mark.parametrize("name", ["root", "nobody", "0", "daemon"])
def test_a_job_file_can_not_choose_who_it_is(name: str) -> None:
    told = "which allows no user" if may_limit() else "is not root"
    with pytest.raises(StartFailed, match=rf"user: .*'{name}'.*{told}"):
        task_users.account_of(name, default=str(task_users.TASK_UID), allowed=())


def test_only_users_that_the_operator_allows_a_job_file_may_name() -> None:
    if not may_limit():
        with pytest.raises(StartFailed, match="is not root"):
            task_users.account_of("nobody", default="", allowed={"nobody"})
        return
    account = task_users.account_of("nobody", default=str(task_users.TASK_UID), allowed={"nobody"})
    assert account is not None
    assert account[0] == pwd.getpwnam("nobody").pw_uid


def test_under_a_closed_folder_there_is_nobody_to_become(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert task_users.task_user(closed / "home") == ""


async def test_a_task_of_root_reads_nothing_of_its_borglet(bare_machine: Machine) -> None:
    bare_machine.home.mkdir(mode=0o711)
    for folder in (bare_machine.home, *bare_machine.home.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)  # pytest closes its folders
    secret = bare_machine.home / "identity.json"
    secret.write_text("secret")
    secret.chmod(0o600)
    user = task_users.task_user(bare_machine.home)
    assert user == (str(task_users.TASK_UID) if may_limit() else "")
    bare_machine.with_settings(default_user=user)
    logs = bare_machine.home / "logs"
    script = f"id -u; echo here > file && cat file; cat {secret} || echo refused; ls {logs} || echo closed"
    async with bare_machine.runtime() as runtime:
        assert runtime.attributes()["isolation.user"] == ("own" if user else "none")
        await runtime.start(a_task("sh", "-c", script, key=key()), run=1)
        await end_of(runtime)
        told = await text_of(runtime)
        if user:
            assert told == f"{user}\nhere\nrefused\nclosed\n"
        else:
            assert told.startswith(f"{os.geteuid()}\nhere\nsecret"), "without root tasks are the Borglet's own user"


def test_a_task_keeps_its_number_and_shares_it_with_no_other() -> None:
    taken: dict[str, int] = {}
    for index in range(50):
        taken[f"job.{index}.1"] = task_users.own_uid(f"job.{index}.1", taken, first=200_000, count=50)
    assert sorted(taken.values()) == list(range(200_000, 200_050))
    assert task_users.own_uid("job.7.1", taken, first=200_000, count=50) == taken["job.7.1"]
    with pytest.raises(StartFailed, match=r"all 50 user numbers .* BORGLET_TASK_UIDS"):
        task_users.own_uid("job.50.1", taken, first=200_000, count=50)


def test_a_number_comes_back_late() -> None:
    numbers = {task_users.own_uid(f"job.0.{run}", {}, first=200_000, count=65_536) for run in range(20)}
    assert len(numbers) > 15
