"""Tests of `make up`: the files that it generates, its memory, and that it can be stopped, killed, restarted and
moved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from portal.up.engines import socket_path
from portal.up.supervision import children
from tests.acceptance.conftest import installation_in_a_folder, say_hello
from tests.acceptance.installation import ROOT, Installation, tree_of, wait_for
from tests.quickness import stretch

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(400)]
BOUND_S = 90.0
READY_S = 15.0  # on an otherwise idle host
_STUBBORN = (
    "import signal, socket, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "server = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(3600)"
)
_MOST_PSS_BYTES = 3 * 2**29  # 1.5 GiB


def test_what_is_generated_is_private_and_works_at_once(shared: Installation) -> None:
    for name in ("client.toml", "secrets.json"):
        assert (shared.home / name).stat().st_mode & 0o777 == 0o600
    client = tomllib.loads((shared.home / "client.toml").read_text())
    assert (client["url"], client["cell"], client["default_profile"]) == (shared.url, "dev", "demo")
    assert "up" in {row["state"] for row in shared.borgctl("machines", profile="admin")}
    for log in (shared.home / "log").iterdir():
        text = log.read_text(errors="replace")
        for profile in client["profiles"].values():
            assert profile["token"] not in text, f"a token is in {log.name}"


def test_a_second_start_names_the_first_and_disturbs_nothing(shared: Installation) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "portal.up"],
        cwd=ROOT,
        env=shared.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 1
    assert f"is in use by process {shared.supervisor_pid}" in second.stderr
    assert shared.well() is None


def test_all_of_it_fits_into_its_memory(shared: Installation) -> None:
    ours = tree_of(shared.supervisor_pid)
    used = {}
    for pid in ours:
        with suppress(psutil.NoSuchProcess):  # sessions of PostgreSQL come and go
            used[pid] = psutil.Process(pid).memory_full_info().pss
    assert sum(used.values()) < _MOST_PSS_BYTES, used


def test_ctrl_c_stops_all_and_the_next_start_goes_on(own: Installation) -> None:
    own.start()
    say_hello(own)
    ours = tree_of(own.supervisor_pid) | own.task_pids("hello")
    assert own.stop(signal.SIGINT) == 0
    left = [pid for pid in ours if children.start_time_ticks(pid) is not None]
    assert left == [], "Ctrl-C must stop everything, tasks included"
    assert not socket_path(own.home).exists(), "and leave nothing in /tmp"

    busy = stretch()
    took_s = own.start()
    assert took_s <= READY_S * max(busy, stretch())
    # The portal shows the tasks as up before the Borglet reports, and before the tasks listen.
    wait_for(lambda: len(own.task_pids("hello")) == 3, BOUND_S, story=lambda: own.borgctl("why", "hello"))


def test_a_second_ctrl_c_does_not_wait_for_the_notice_of_tasks(own: Installation) -> None:
    own.start()
    stubborn = {"command": ["python3", "-c", _STUBBORN, "$(port.http)"], "ports": ["http"], "notice_s": 600}
    own.submit("stubborn", [], task=stubborn)
    wait_for(lambda: len(own.task_pids("stubborn")) == 1, BOUND_S, story=lambda: own.borgctl("why", "stubborn"))
    ours = tree_of(own.supervisor_pid) | own.task_pids("stubborn")
    names = {pid: _command(pid) for pid in ours}
    os.kill(own.supervisor_pid, signal.SIGINT)
    wait_for((own.home / "run" / "stop-tasks.pid").exists, BOUND_S, story=own.output)
    assert own.stop(signal.SIGINT, timeout_s=90.0) == 0
    left = [pid for pid in ours if children.start_time_ticks(pid) is not None]
    assert left == [], f"nothing may be left, stubborn tasks included: {[names[pid] for pid in left]}"


def test_tasks_outlive_a_killed_supervisor_and_are_adopted(own: Installation) -> None:
    own.start()
    say_hello(own)
    tasks = own.task_pids("hello")
    servers = tree_of(own.supervisor_pid) - tasks
    names = {pid: _command(pid) for pid in servers}
    own.stop(signal.SIGKILL)
    assert all(children.start_time_ticks(pid) is not None for pid in tasks)

    own.start()
    wait_for(lambda: own.up("hello"), BOUND_S, story=lambda: own.borgctl("why", "hello"))
    assert own.task_pids("hello") == tasks
    assert [row["restarts"] for row in own.tasks("hello")] == [0, 0, 0]
    engines = [pid for pid, name in names.items() if "postgres" in name or "redis" in name]
    assert [pid for pid in engines if children.start_time_ticks(pid) is not None] == []


def test_a_running_home_is_saved_and_moves(own: Installation) -> None:
    own.start()
    say_hello(own)
    file = own.home.with_name("backup.tar")
    _backup(own, "save", str(file))
    assert own.up("hello")
    own.submit("after-the-backup", ["sleep", "infinity"])
    refused = _backup(own, "restore", str(file), status=1)
    assert "is not empty" in refused
    own.stop()

    with installation_in_a_folder() as moved:
        _backup(moved, "restore", str(file))
        moved.start()
        wait_for(lambda: moved.up("hello"), BOUND_S, story=lambda: moved.borgctl("why", "hello"))
        names = {job["name"] for job in moved.borgctl("status")}
        assert names == {"hello"}
        assert (moved.home / "secrets.json").read_text() == (own.home / "secrets.json").read_text()


def _backup(there: Installation, *words: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "portal.up.backup", *words],
        cwd=ROOT,
        env=there.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stderr


def _command(pid: int) -> str:
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return ""
