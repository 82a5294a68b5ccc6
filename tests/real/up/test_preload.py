"""Tests of the preload process, which imports modules once and forks the servers."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from portal.up.supervision import children, forks
from portal.up.supervision.process_keeper import Spec
from portal.up.supervision.supervisor import ProcessSupervisor, SupervisorError

ROOT = Path(__file__).parents[3]
# The preload process without the code of the servers, which takes seconds to import.
_SMALL = "import sys; from pathlib import Path; from portal.up import preload; preload.run(Path(sys.argv[1]))"


def preload_spec(path: Path) -> Spec:
    probe = partial(forks.accepts, path)
    argv = (sys.executable, "-c", _SMALL, str(path), "." * 200)
    return Spec("preload", argv, env=dict(os.environ), ready=probe, alive=probe, alive_every_s=0.1)


def forked(path: Path, *words: str, name: str = "web", **more: Any) -> Spec:
    argv = (sys.executable, "-m", "tests.real.up.forked", *words)
    return Spec(name, argv, env={"PATH": "/bin", "MINE": "yes"}, needs=("preload",), preload=path, **more)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Start a preload process, and yield its socket. The path is longer than the address of a Unix socket may be."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    spec = preload_spec(folder / "preload.sock")
    process = children.spawn(spec.argv, env=spec.env)
    assert children.wait_until(lambda: forks.accepts(folder / "preload.sock") is None, 20.0)
    yield folder / "preload.sock"
    process.kill()
    process.wait()


def start(preload: Path, *words: str, log: Path, name: str = "web") -> forks.ForkedProcess:
    argv = (sys.executable, "-m", "tests.real.up.forked", *words)
    with log.open("ab") as output:
        return forks.fork(
            preload,
            argv,
            name=name,
            env={"PATH": "/bin", "MINE": "yes"},
            output=output.fileno(),
            death_signal=signal.SIGTERM,
        )


def test_exit_statuses_and_signals_arrive_at_the_supervisor(small: Path, tmp_path: Path) -> None:
    assert start(small, "exit", "0", log=tmp_path / "log").wait(20.0) == 0
    assert start(small, "exit", "7", log=tmp_path / "log").wait(20.0) == 7
    sleeping = start(small, "sleep", log=tmp_path / "log")
    assert sleeping.poll() is None
    sleeping.kill()
    assert sleeping.wait(20.0) == -signal.SIGKILL


def test_a_server_has_its_own_session_environment_name_and_output(small: Path, tmp_path: Path) -> None:
    server = start(small, "describe", "a word", log=tmp_path / "log", name="worker")
    assert server.wait(20.0) == 0
    found = json.loads((tmp_path / "log").read_text())
    assert found["parent"] == os.getpid()
    assert found["session"] == server.pid
    assert found["environment"] == {"PATH": "/bin", "MINE": "yes"} | (
        {"LC_CTYPE": found["environment"]["LC_CTYPE"]} if "LC_CTYPE" in found["environment"] else {}
    )
    assert found["arguments"] == ["a word"]
    assert found["name"] == "borg-worker"
    assert found["command"] == [sys.executable, "-m", "tests.real.up.forked", "describe", "a word"]
    assert found["threads"] == 1
    assert [name for name in found["files"] if "socket" in name] == []


def test_two_servers_draw_different_random_numbers(small: Path, tmp_path: Path) -> None:
    for log in ("one", "two"):
        assert start(small, "describe", log=tmp_path / log).wait(20.0) == 0
    one, two = (json.loads((tmp_path / log).read_text())["random"] for log in ("one", "two"))
    assert one[0] != two[0]
    assert one[1] != two[1]


def test_a_server_that_the_supervisor_no_longer_waits_for_ends(small: Path, tmp_path: Path) -> None:
    request = {"argv": [sys.executable, "-m", "tests.real.up.forked", "sleep"], "name": "web", "env": {}}
    with (tmp_path / "log").open("ab") as output, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        with forks.short_path(small) as short:
            connection.connect(short)
        with children.subreaper():
            message = json.dumps({**request, "death_signal": int(signal.SIGTERM)}).encode()
            socket.send_fds(connection, [message], [output.fileno()])
            server = forks.ForkedProcess(int(connection.recv(16)))
    assert server.wait(20.0) == 1
    assert (tmp_path / "log").read_text() == ""


def test_only_modules_can_be_forked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only `python -m MODULE`"):
        forks.fork(tmp_path / "preload.sock", ["sleep", "1"], name="a", env={}, output=1, death_signal=signal.SIGTERM)


def test_the_end_of_the_preload_process_leaves_servers_running(tmp_path: Path) -> None:
    path = tmp_path / "run" / "preload.sock"

    async def scenario() -> None:
        for folder in ("run", "log"):
            (tmp_path / folder).mkdir()
        kept = ProcessSupervisor(run_folder=tmp_path / "run", log_folder=tmp_path / "log")
        try:
            kept.start([preload_spec(path), forked(path, "sleep")])
            await kept.wait_up(30.0)
            preload, web = kept.keepers["preload"], kept.keepers["web"]
            first, server = preload.pid, web.pid
            assert first is not None
            assert server is not None
            os.kill(first, signal.SIGKILL)
            async with asyncio.timeout(30.0):
                while preload.pid in (None, first) or not preload.up.is_set():
                    await asyncio.sleep(0.01)
            assert web.pid == server
            assert children.start_time_ticks(server) is not None
            os.kill(server, signal.SIGKILL)
            async with asyncio.timeout(30.0):
                while web.pid in (None, server) or not web.up.is_set():
                    await asyncio.sleep(0.01)
            assert web.restarts.total == 1
            assert "SIGKILL" in web.why or web.why == "ready"
            with pytest.raises(SupervisorError, match="status 7"):
                await kept.run_once(forked(path, "exit", "7", name="step"))
        finally:
            kept.hurry()
            await kept.stop()

    asyncio.run(scenario())


_SUPERVISOR = """
import os, signal, sys
from pathlib import Path
from portal.up.supervision import children, forks
path = Path(sys.argv[1])
children.spawn(sys.argv[2:], env=dict(os.environ), death_signal=signal.SIGKILL)
assert children.wait_until(lambda: forks.accepts(path) is None, 20.0)
argv = [sys.executable, "-m", "tests.real.up.forked", "sleep"]
server = forks.fork(path, argv, name="web", env={}, output=2, death_signal=signal.SIGTERM)
print(server.pid, flush=True)
input()
"""


def test_a_server_ends_with_its_supervisor(tmp_path: Path) -> None:
    path = tmp_path / "preload.sock"
    command = [sys.executable, "-c", _SUPERVISOR, str(path), *preload_spec(path).argv]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as supervisor:
        assert supervisor.stdout is not None
        server = int(supervisor.stdout.readline())
        assert children.start_time_ticks(server) is not None
        supervisor.kill()
        supervisor.wait()
    assert children.wait_until(lambda: children.start_time_ticks(server) is None, 10.0)


_ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": "portal.settings.production",
    "BORG_SECRET_KEY": "k" * 60,
    "BORG_DATABASE_URL": "postgresql:///missing?host=/missing",
    "BORG_REDIS_URL": "unix:///missing/redis.sock",
    "OPENBLAS_NUM_THREADS": "1",
}


def test_the_preload_process_has_one_thread_no_connection_and_no_numba(tmp_path: Path) -> None:
    path = tmp_path / "preload.sock"
    argv = [sys.executable, "-m", "portal.up.preload", str(path)]
    with subprocess.Popen(argv, env={**os.environ, **_ENVIRONMENT}, cwd=ROOT) as process:
        try:
            ended = children.wait_until(lambda: forks.accepts(path) is None or process.poll() is not None, 60.0)
            assert ended
            assert process.poll() is None
            proc = Path(f"/proc/{process.pid}")
            assert len(list((proc / "task").iterdir())) == 1

            def only_listens() -> bool:
                try:
                    opened = [os.readlink(entry) for entry in (proc / "fd").iterdir()]
                except FileNotFoundError:  # the process closes a connection in this moment
                    return False
                return sum(name.startswith("socket:") for name in opened) == 1

            assert children.wait_until(only_listens, 10.0), "no connection is open after the end of the last probe"
            opened = [os.readlink(entry) for entry in (proc / "fd").iterdir()]
            assert not [name for name in opened if "eventpoll" in name], "no event loop"
            assert "llvmlite" not in (proc / "maps").read_text()
        finally:
            process.kill()


def test_a_web_process_has_a_pool_although_its_settings_were_loaded_without_one() -> None:
    code = (
        "from portal import asgi; from django.db import connection; import json; "
        "before = dict(connection.settings_dict); asgi.use_pool(asgi.POOL); after = connection.settings_dict; "
        "print(json.dumps([before['CONN_MAX_AGE'], after['CONN_MAX_AGE'], after['OPTIONS']['pool']['max_size'], "
        "before.keys() == after.keys()]))"
    )
    env = {**os.environ, **_ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [600, 0, 20, True]


def test_a_master_does_not_import_the_pages_of_the_console() -> None:
    code = (
        "import django, sys; django.setup(); import scheduling.master.loop; "
        "print([name for name in ('portal.admin_site', 'scheduling.admin') if name in sys.modules])"
    )
    env = {**os.environ, **_ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_module_that_starts_a_thread_cannot_be_preloaded(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    code = "from portal.up.preload import load; load(['threaded'])"
    env = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "ForkUnsafe: an imported module has started a thread" in done.stderr
