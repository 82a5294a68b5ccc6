"""Tests of `borgctl lock` and of requests that wait, against a real web process."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from quota.models import Membership
from quota.vocabulary.permissions import Role
from scheduling.locks import locks
from scheduling.locks.sessions import Space
from scheduling.models import LockSession
from tests.borgctl import BORGCTL
from tests.integration import cli_world
from tests.integration.link_world import until
from tests.integration.lock_rows import let_leases_end, user

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def olga(shared_portal, tenant, tmp_path: Path) -> cli_world.Cli:
    cli = cli_world.of(tmp_path, shared_portal, "olga", tenant=tenant)
    Membership.objects.filter(user__username="olga").update(role=Role.OWNER.value)
    return cli


@pytest.fixture
def space(cell, tenant):
    return Space(cell.id, tenant.id)


def _at_terminal() -> None:
    """Make the standard input the controlling terminal. A test run in the background may have inherited that SIGINT is
    ignored.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def begun(cli: cli_world.Cli, *words: str, terminal: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a command in the background. It is killed at the end of the block. `terminal`: its controlling terminal."""
    process = subprocess.Popen(
        [BORGCTL, *words],
        env=cli.environment,
        cwd=cli.folder,
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=terminal is not None,
        preexec_fn=None if terminal is None else _at_terminal,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_contents_are_set_read_and_deleted(olga, space) -> None:
    assert "sequence number 1" in olga.out("lock", "set", "shop/config", "blue", "--if-sequence", "0")
    assert olga.out("lock", "get", "shop/config") == "blue"
    assert "sequence number 2" in olga.out("lock", "set", "shop/config", "--file", "-", given="green\n")
    assert olga.out("lock", "show", "shop/config") == ("shop/config  free, token 0, sequence number 2\ngreen\n\n")
    assert "shop/config" in olga.out("lock", "list", "shop/")
    assert "No locks" in olga.out("lock", "list", "other")
    _, document = olga.failing("lock", "set", "shop/config", "x", "--if-sequence", "1")
    assert document["code"] == "sequence-differs"
    told, _ = olga.failing("lock", "set", "shop/config", status=2)
    assert "either as TEXT or with --file" in told
    assert "would be" in olga.out("lock", "delete", "shop/config", "--dry-run")
    olga.out("lock", "delete", "shop/config")
    assert olga.failing("lock", "get", "shop/config")[1]["code"] == "not-found"


def test_a_command_runs_with_the_lock_and_its_status_is_that_of_borgctl(olga, space) -> None:
    script = 'echo "$BORG_LOCK $BORG_LOCK_TOKEN"; exit 3'
    done = olga.run("lock", "acquire", "backup", "--exec", script, "--content", "olga")
    held = locks.lock_named(space, "backup")
    assert (done.returncode, done.stdout) == (3, f"backup {held.token}\n")
    assert (held.holder, held.content) == (None, "olga")
    held, _ = locks.acquire(space, "backup", user("bob"))
    told, document = olga.failing("lock", "acquire", "backup", "--exec", "true")
    assert "held by bob" in told
    assert document["code"] == "lock-held"
    assert "ended" in olga.out("lock", "evict", "backup", "--yes")
    answer = olga.json("lock", "acquire", "backup")
    assert answer["token"] > held.token
    assert "released" in olga.out("lock", "release", "backup", "--session", answer["session"])


def test_a_command_is_stopped_when_its_lock_is_lost(olga, space) -> None:
    script = 'echo begun; trap "echo stopped; exit 1" TERM; while true; do sleep 0.05; done'
    with begun(olga, "lock", "acquire", "backup", "--lease", "5", "--exec", script) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        let_leases_end()
        assert process.wait(60) == 1
        assert process.stdout.read() == "stopped\n"
        assert "has ended" in process.stderr.read()


@pytest.mark.parametrize("ended_by", ["the lease", "a signal"])
def test_all_processes_of_a_command_are_stopped(olga, space, ended_by: str) -> None:
    script = 'sleep 300 & echo "$!"; wait; true'
    with begun(olga, "lock", "acquire", "backup", "--lease", "5", "--exec", script) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        try:
            assert LockSession.objects.get().key, "a repeated request finds this session"
            if ended_by == "the lease":
                let_leases_end()
            else:
                process.terminate()
            assert process.wait(60) == (1 if ended_by == "the lease" else 128 + signal.SIGTERM)
            until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, what="the child has ended")
        finally:
            if child.is_running():
                child.kill()
    assert not LockSession.objects.exists()


def test_ctrl_c_at_a_terminal_ends_the_command_and_releases_the_lock(olga, space) -> None:
    keyboard, terminal = os.openpty()
    try:
        # A shell may start one more program after a signal, so this program replaces the shell.
        command = f"""exec {sys.executable} -c 'import time; print("begun", flush=True); time.sleep(300)'"""
        with begun(olga, "lock", "acquire", "backup", "--exec", command, terminal=terminal) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "begun\n"
            os.write(keyboard, b"\x03")
            assert process.wait(60) == 128 + signal.SIGINT
            assert not LockSession.objects.exists(), process.stderr.read()
    finally:
        os.close(keyboard)
        os.close(terminal)


def test_a_request_waits_until_the_lock_is_free(olga, space) -> None:
    held, _ = locks.acquire(space, "backup", user("bob", lease_s=600.0))
    with begun(olga, "lock", "acquire", "backup", "--wait", "60", "--json") as process:
        assert process.stdout is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.0)
        locks.release(space, "backup", user("bob", held.session))
        released_at = time.monotonic()
        answer = json.loads(process.stdout.read())
        assert answer["token"] > held.token
        assert time.monotonic() - released_at < 30
    assert LockSession.objects.get().owner == "olga"


def test_a_watch_prints_each_change(olga, space) -> None:
    locks.write(space, "config", "one", actor="ann")
    with begun(olga, "lock", "watch", "config", "--json") as process:
        assert process.stdout is not None
        seen: list[dict[str, Any]] = []

        def read() -> None:
            for line in process.stdout or ():
                seen.append(json.loads(line))

        reader = threading.Thread(target=read)
        reader.start()
        for number, text in enumerate(("one", "two", "three"), start=1):
            until(lambda number=number: len(seen) == number, what=f"change {number} arrives")
            if number < 3:
                locks.write(space, "config", ("two", "three")[number - 1], actor="ann")
            assert (seen[-1]["content"], seen[-1]["sequence"]) == (text, number)
        process.kill()
        reader.join(10)
