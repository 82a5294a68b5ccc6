"""Tests of a Borglet as a process: its tasks survive its death, and the next process adopts or stops them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from borglet.identity.saved_state import DiskStore, Identity
from borglet.messages import EndCause, Phase, Report
from borglet.runtimes.home.taskdirs import directory_name
from tests.real.borglet.cell import BOUND_S, Authority, join_server, running_shard
from tests.unit.borglet.builders import desired, key, run_task

GOOD = ["run", "--home", "h", "--link", "https://h:1", "--address", "a"]
LIMIT = {"cpu": 100, "ram": 256 * 2**20, "disk": 2**26}


def borglet(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "borglet", *arguments]


@contextlib.contextmanager
def running(home: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    command = borglet("run", "--home", str(home), "--hostname", "m1", "--address", "127.0.0.1")
    with (home.parent / "borglet.log").open("ab") as log:
        process = subprocess.Popen(command, env={**os.environ, "BORGLET_LINK": url}, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stop_all(home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        borglet("stop-all", "--home", str(home), "--wait-s", "0"),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def phases(report: Report) -> list[tuple[int, Phase]]:
    return sorted((task.key.index, task.phase) for task in report.tasks)


def test_tasks_outlive_their_borglet_and_nothing_is_lost(tmp_path: Path, authority: Authority) -> None:
    home = tmp_path / "home"
    DiskStore(home).save_identity(Identity("m1", "aa", "secret"), authority=authority.pem)
    # `stop-all` does not wait until tasks have left DNS, because a person waits for the command.
    lasting = run_task(0, command=["sleep", "600"], limit=LIMIT, notice_s=1.0, leave_s=600.0)
    # The task's own folder is visible to the task and to this test in every runtime.
    gate = home / "tasks" / directory_name(key(1)) / "work" / "gate"
    program = "[ -p gate ] || mkfifo gate; read _ < gate; exit 7"
    ending = run_task(1, command=["sh", "-c", program], limit=LIMIT, restart=run_task().restart)
    wanted = desired(1, [lasting, ending])

    async def whole() -> None:
        async with running_shard(authority) as shard:
            with running(home, shard.url) as first:
                conversation = await shard.arrival()
                assert conversation.hello.attributes["runtime"] == ("oci" if os.geteuid() == 0 else "process")
                report = await conversation.until(lambda found: phases(found) == [(0, Phase.UP), (1, Phase.UP)], wanted)
                started_at = {task.key: task.started_at for task in report.tasks}
                refused = await asyncio.to_thread(stop_all, home)
                assert (refused.returncode, f"the Borglet with process id {first.pid}" in refused.stderr) == (1, True)
                first.send_signal(signal.SIGKILL)
                await asyncio.to_thread(first.wait)
            # No Borglet runs while the second task fails.
            async with asyncio.timeout(BOUND_S):
                while not gate.is_fifo():
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(gate.write_text, "\n")
            with running(home, shard.url) as second:
                conversation = await shard.arrival()
                assert conversation.hello.history_id == "h1"
                report = await conversation.until(
                    lambda found: phases(found) == [(0, Phase.UP), (1, Phase.UP)] and found.tasks[1].restarts == 1
                )
                found = {task.key.index: task for task in report.tasks}
                assert (found[0].restarts, found[0].started_at) == (0, pytest.approx(started_at[key(0)], abs=1))
                assert found[1].exit is not None
                assert (found[1].exit.cause, found[1].exit.status) == (EndCause.EXITED, 7)
                second.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(second.wait, BOUND_S) == 0
            done = await asyncio.to_thread(stop_all, home)
            assert (done.returncode, done.stdout) == (0, "2 tasks stopped\n"), done.stderr
            # The desired state still lists them: the next Borglet starts them again without counting a failure.
            with running(home, shard.url):
                conversation = await shard.arrival()
                report = await conversation.until(lambda found: phases(found) == [(0, Phase.UP), (1, Phase.UP)])
                assert {task.restarts for task in report.tasks} == {1, 2}
        assert stop_all(home).returncode == 0

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--link", "https://h:1", "--address", "a"], "--home"),
        (["run", "--home", "h", "--link", "http://h:1", "--address", "a"], "give https://host:port"),
        ([*GOOD, "--hostname", "A_b"], "hostname: 'A_b'"),
        ([*GOOD, "--capacity", "cpu=x"], "capacity.cpu"),
        ([*GOOD, "--port-low", "9", "--port-high", "8"], "9 to 8"),
        (["fleet", "--home", "h", "--link", "https://h:1", "--machines", "0"], "machines: 0"),
        (["fleet", "--home", "h", "--link", "https://h:1"], "--machines --file is required"),
    ],
)
def test_bad_usage_is_named_and_ends_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    root = str(Path(__file__).parents[3])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BORGLET_")}
    done = subprocess.run(
        borglet(*arguments),
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": root},
        check=False,
    )
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_refused_join_is_reported_and_ends_with_1(tmp_path: Path, authority: Authority) -> None:
    with join_server(authority) as link:
        link.problem = (403, {"code": "token-expired", "detail": "The token ran out.", "fields": {"token": []}})
        done = subprocess.run(
            borglet("run", "--home", str(tmp_path / "home"), "--hostname", "m1", "--address", "127.0.0.1"),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={**os.environ, "BORGLET_LINK": link.url, "BORGLET_JOIN_TOKEN": authority.token()},
        )
    assert done.returncode == 1
    assert "token-expired: The token ran out." in done.stderr
