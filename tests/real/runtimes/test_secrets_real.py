"""Tests of secrets in tasks with real processes: files in memory, variables, new versions, and other users."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from borglet.messages import CONFIG, SecretRef, SecretValue
from borglet.runtimes.base import secret_files
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.base.secret_files import SecretFiles
from tests.real.runtimes.machine import Machine, a_task, end_of, eventually, key, line_of, supervisor_pid, text_of

pytestmark = pytest.mark.skipif(
    not secret_files.in_memory(secret_files.MEMORY), reason="this machine has no file system in memory"
)
FILE = SecretValue("db", 1, "password", "", b"hunter2")
VARIABLE = SecretValue("db", 1, "", "DB_PASSWORD", b"$(job) hunter2")


def files_below(folder: Path) -> bytes:
    content = b""
    for path, _, names in os.walk(folder):
        for name in names:
            file = Path(path, name)
            if stat.S_ISREG(file.lstat().st_mode):
                content += file.read_bytes()
    return content


async def test_a_task_finds_its_secrets_and_no_file_on_the_disk_has_them(machine: Machine) -> None:
    program = (
        'cd "$BORG_SECRETS"; wc -c < password; stat -c %a password; printf %s "$DB_PASSWORD" | wc -c; exec sleep 60'
    )
    async with machine.runtime() as runtime:
        assert runtime.attributes()["secrets"] == "memory"
        await runtime.start(a_task("sh", "-c", program), run=1, secrets=[FILE, VARIABLE])
        await eventually(lambda: b"14\n" in files_below(machine.home / "logs"), "the task to read its secrets")
        lines = (await text_of(runtime)).split()
        assert lines == ["7", "400", "14"]
        assert b"hunter" not in files_below(machine.home)
        (presence,) = await runtime.presences()
        assert presence.task.secrets == [SecretRef("db", 1, "password", ""), SecretRef("db", 1, "", "DB_PASSWORD")]
        assert "hunter" not in repr(FILE)


async def test_a_new_version_replaces_the_file_of_a_running_task(machine: Machine) -> None:
    program = (
        'cd "$BORG_SECRETS"; cat password; echo; while grep -q hunter2 password; do sleep 0.05; done; cat password'
    )
    async with machine.runtime() as runtime:
        await runtime.start(a_task("sh", "-c", program), run=1, secrets=[FILE])
        assert await line_of(runtime) == "hunter2"
        await runtime.renew_secrets(key(), [SecretValue("db", 2, "password", "", b"fresh")])
        await end_of(runtime)
        assert (await text_of(runtime)).splitlines()[-1] == "fresh"
    async with machine.runtime() as runtime:
        (presence,) = await runtime.presences()
        assert [ref.version for ref in presence.task.secrets] == [2], "the next Borglet knows which version it has"
    assert not (machine.home / "secrets").is_symlink(), "the files are deleted with the last task"


def a_config(version: int, content: bytes) -> SecretValue:
    return SecretValue("flags", version, "flags.yaml", "", content, CONFIG, "signal")


async def test_a_config_file_is_replaced_and_the_task_gets_a_signal(machine: Machine) -> None:
    program = (
        'cd "$BORG_CONFIGS"; trap "cat flags.yaml; exit 0" HUP; cat flags.yaml; stat -c %a flags.yaml;'
        ' echo "$BORG_SECRETS"; while true; do sleep 60 & wait $!; done'
    )
    async with machine.runtime() as runtime:
        assert runtime.attributes()["configs"] == "memory"
        await runtime.start(a_task("sh", "-c", program), run=1, secrets=[a_config(1, b"color: red\n")])
        await eventually(lambda: b"400\n\n" in files_below(machine.home / "logs"), "the task to read its file")
        (presence,) = await runtime.presences()
        assert presence.task.secrets == [SecretRef("flags", 1, "flags.yaml", "", CONFIG, "signal")]
        await runtime.renew_secrets(key(), [a_config(2, b"color: blue\n")], signal=True)
        await end_of(runtime)
        assert (await text_of(runtime)).splitlines() == ["color: red", "400", "", "color: blue"]


async def test_a_task_cannot_change_its_secrets_to_write_elsewhere(machine: Machine, tmp_path: Path) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(a_task("sleep", "60"), run=1, secrets=[FILE])
        folder = machine.home / "secrets" / f"{key().job}.0.1"
        victim = tmp_path / "victim"
        victim.write_text("untouched")
        (folder / ".password.new").symlink_to(victim)
        (folder / secret_files.CONFIGS).symlink_to(tmp_path)
        with pytest.raises(OSError, match="cannot write the config files of the task into memory"):
            await runtime.renew_secrets(key(), [a_config(1, b"color: red")])
        await runtime.renew_secrets(key(), [SecretValue("db", 2, "password", "", b"fresh")])
        assert victim.read_text() == "untouched"
        assert (folder / "password").read_bytes() == b"fresh"


async def test_a_supervisor_writes_no_core_dump(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(a_task("sleep", "60"), run=1, secrets=[VARIABLE])
        limits = Path(f"/proc/{supervisor_pid(machine)}/limits").read_text().splitlines()
        (core,) = [line.split() for line in limits if line.startswith("Max core file size")]
        assert core[4:6] == ["0", "0"]


async def test_a_value_that_cannot_be_a_variable_fails_the_start_and_is_not_shown(machine: Machine) -> None:
    broken = SecretValue("db", 1, "", "DB_PASSWORD", b"hunter2\xff")
    async with machine.runtime() as runtime:
        with pytest.raises(StartFailed, match=r"env\.DB_PASSWORD: secret db is not text") as caught:
            await runtime.start(a_task("sleep", "60"), run=1, secrets=[broken])
        assert caught.value.__cause__ is None
        assert await runtime.presences() == []
        await runtime.start(a_task("true"), run=1, secrets=[VARIABLE])
        assert (await end_of(runtime)).exit.status == 0


def test_files_are_only_in_memory(tmp_path: Path) -> None:
    on_disk = SecretFiles(tmp_path, memory=tmp_path)
    if secret_files.in_memory(tmp_path):
        pytest.skip("the folder of the tests is in memory")
    assert not on_disk.usable()
    with pytest.raises(OSError, match="is not a writable file system in memory"):
        on_disk.write("a", {"x": b"hunter2"}, (os.geteuid(), os.getegid()))


def test_forgotten_files_are_deleted(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path)
    owner = os.geteuid(), os.getegid()
    for name in ("a", "b"):
        files.write(name, {"x": b"hunter2"}, owner)
    files.write_process("a", b"{}")
    files.sweep({"a"})
    assert files.folder_of("a").is_dir()
    assert not files.folder_of("b").exists()
    assert not files.process_file("a").exists()
    assert oct(files.folder_of("a").parent.stat().st_mode & 0o777) == "0o711"
    files.close()
    assert files.folder_of("a").is_dir(), "it is not empty"
    files.remove("a")
    files.close()
    assert not files.folder_of("a").parent.is_symlink()
