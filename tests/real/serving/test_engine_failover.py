"""Tests of settings with several hosts: clients follow a failover of real PostgreSQL, and of Redis with Sentinel."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from kombu import Connection
from redis.sentinel import MasterNotFoundError

from portal.up import engines
from serving import redis_clients, redis_url
from tests.ports import free_port

WITHIN_S = 60.0
_WRITER = """
import sys, django
django.setup()
from django.db import Error, connection
for line in sys.stdin:
    try:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO written VALUES (%s)", [int(line)])
        print("written", flush=True)
    except Error as error:
        connection.close()
        print(type(error).__name__, flush=True)
"""


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)


# --- PostgreSQL


def psql(url: str, command: str) -> str:
    binary = engines.postgres_binaries() / "psql"
    return subprocess.check_output([binary, url, "-Atqc", command], text=True, timeout=WITHIN_S).strip()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[engines.Engine, engines.Engine]]:
    """Yield a PostgreSQL server and a second one that replicates it."""
    with ExitStack() as cleanup:
        first = engines.start(engines.prepare_postgres(tmp_path / "first", durable=False))
        cleanup.callback(first.stop)
        first.wait_ready(WITHIN_S)
        (tmp_path / "second").mkdir(mode=0o711)
        account = engines.engine_account(tmp_path, engines.postgres_binaries())
        copied = tmp_path / "second" / "postgres"
        engines._own_folder(copied, account)
        copy = [
            str(engines.postgres_binaries() / "pg_basebackup"),
            "-d",
            first.url,
            "-D",
            str(copied),
            "-R",
            "-c",
            "fast",
        ]
        engines.run_program(copy, account=account, cwd=copied)
        second = engines.start(engines.prepare_postgres(tmp_path / "second", durable=False))
        cleanup.callback(second.stop)
        second.wait_ready(WITHIN_S)
        yield first, second


def test_writes_continue_at_the_new_leader_of_postgres(pair: tuple[engines.Engine, engines.Engine]) -> None:
    first, second = pair
    psql(first.url, "CREATE TABLE written (n int)")
    until(lambda: psql(second.url, "SELECT to_regclass('written')") == "written")
    # The standby comes first in the list, so a connection must go on to the server that accepts writes.
    hosts = f"{second.launch.sockets},{first.launch.sockets}"
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings.production",
        "BORG_DATABASE_URL": f"postgresql:///{engines.DATABASE}?host={hosts}&user=postgres",
        "BORG_SECRET_KEY": "of-the-tests-" + "x" * 50,
    }
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        stdin, stdout = writer.stdin, writer.stdout

        def write(number: int) -> str:
            print(number, file=stdin, flush=True)
            return stdout.readline().strip()

        assert write(1) == "written"
        until(lambda: psql(second.url, "SELECT count(*) FROM written") == "1")
        first.process.send_signal(signal.SIGQUIT)
        first.process.wait(WITHIN_S)
        assert write(2) == "OperationalError"
        psql(second.url, "SELECT pg_promote()")
        until(lambda: write(3) == "written")
        stdin.close()
    assert psql(second.url, "SELECT string_agg(n::text, ' ' ORDER BY n) FROM written") == "1 3"


# --- Redis


@dataclass(frozen=True)
class Watched:
    """Two Redis servers under a sentinel. `url`: the value of BORG_REDIS_URL."""

    url: str
    master: subprocess.Popen[bytes]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    master_port, replica_port, sentinel_port = free_port(), free_port(), free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {sentinel_port}\nbind 127.0.0.1\ndir {tmp_path}\n"
        f"sentinel monitor borg 127.0.0.1 {master_port} 1\n"
        "sentinel down-after-milliseconds borg 500\nsentinel failover-timeout borg 5000\n"
    )
    server = str(engines.redis_server())
    common = ("--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path))
    commands = [
        [server, "--port", str(master_port), *common],
        [server, "--port", str(replica_port), "--replicaof", "127.0.0.1", str(master_port), *common],
        [server, str(config), "--sentinel"],
    ]
    with ExitStack() as cleanup, (tmp_path / "redis.log").open("wb") as log:
        processes = []
        for command in commands:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            cleanup.callback(process.wait)
            cleanup.callback(process.kill)
            processes.append(process)
        sentinel = redis.Redis(port=sentinel_port)
        cleanup.callback(sentinel.close)

        def replicated() -> bool:
            try:
                (found,) = sentinel.sentinel_slaves("borg")
            except (redis.RedisError, ValueError):
                return False
            return bool(found["master-link-status"] == "ok")

        until(replicated)
        yield Watched(f"redis+sentinel://127.0.0.1:{sentinel_port}/borg", processes[0])


def test_clients_of_redis_follow_sentinel_to_the_new_master(watched: Watched) -> None:
    client = redis_clients.client(watched.url, socket_timeout=1.0, retry=None)
    broker, options = redis_url.celery_broker(watched.url)
    client.set("before", "1")

    async def set_later(key: str) -> bool:
        later = redis_clients.async_client(watched.url, socket_timeout=1.0, retry=None)
        try:
            return bool(await later.set(key, "1"))
        except redis.RedisError:
            return False
        finally:
            await later.aclose()

    def works(call: Callable[[], object]) -> bool:
        try:
            return bool(call())
        except redis.RedisError:
            return False

    assert asyncio.run(set_later("async-before"))
    watched.master.kill()
    watched.master.wait()
    assert not works(lambda: client.set("lost", "1"))
    until(lambda: works(lambda: client.set("after", "1")))
    assert asyncio.run(set_later("async-after"))
    assert client.get("before") == b"1", "the replica had it"
    with Connection(broker, transport_options=options) as connection, connection.SimpleQueue("tests") as queue:
        queue.put("a task")
        message = queue.get(timeout=WITHIN_S)
        assert message.payload == "a task"
        message.ack()


def test_a_silent_sentinel_delays_only_the_first_attempt(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        silent.settimeout(0.1)
        first = f"127.0.0.1:{silent.getsockname()[1]}"
        url = watched.url.replace("redis+sentinel://", f"redis+sentinel://{first},")

        def asked() -> bool:
            """Return whether a client has connected to the silent sentinel since the last call."""
            try:
                silent.accept()[0].close()
            except TimeoutError:
                return False
            return True

        other = f"{url}-that-no-sentinel-watches"
        client = redis_clients.client(other, socket_timeout=0.3, retry=None)
        for expected in (True, False, False):
            with pytest.raises(MasterNotFoundError):
                client.get("n")
            assert asked() is expected

        async def again() -> None:
            client = redis_clients.async_client(other, socket_timeout=0.3, retry=None)
            for expected in (True, False, False):
                with pytest.raises(MasterNotFoundError):
                    await client.get("n")
                assert asked() is expected
            await client.aclose()

        asyncio.run(again())
        monkeypatch.setattr(redis_clients, "SILENT_S", 0.0)
        with pytest.raises(MasterNotFoundError):
            client.get("n")
        assert asked(), "it may be healthy again"
        assert redis_clients.client(url, socket_timeout=0.3, retry=None).set("n", 1)


def test_a_sentinel_on_a_host_that_is_cut_off_delays_a_client_only_by_its_limit(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_url, "CONNECT_S", 0.1)
    with ExitStack() as cleanup:
        away = cleanup.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = away.getsockname()
        # The one place in its queue is taken, so it drops further attempts to connect, as a host does that is cut off.
        cleanup.enter_context(socket.create_connection(address))
        url = watched.url.replace("redis+sentinel://", f"redis+sentinel://127.0.0.1:{address[1]},")
        broker, options = redis_url.celery_broker(url)

        async def set_later() -> None:
            client = redis_clients.async_client(url, socket_timeout=30.0, retry=None)
            await client.set("n", 2)
            await client.aclose()

        def publish() -> None:
            with Connection(broker, transport_options=options) as connection, connection.SimpleQueue("tests") as queue:
                queue.put("a task")

        for use in (
            lambda: redis_clients.client(url, socket_timeout=30.0, retry=None).set("n", 1),
            lambda: asyncio.run(set_later()),
            publish,
        ):
            begin = time.monotonic()
            use()
            assert time.monotonic() - begin < 4.0, "the library alone waits for 5 s or longer"


def test_a_url_with_sentinels_is_read() -> None:
    found = redis_url.read_sentinel_url("rediss+sentinel://ann:s%40y@one,two:26380/borg/3")
    assert found is not None
    assert found.hosts == (("one", 26379), ("two", 26380))
    assert (found.name, found.database) == ("borg", 3)
    assert found.options == {"username": "ann", "password": "s@y", "ssl": True}
    assert redis_url.read_sentinel_url("redis://one:6379/0") is None


def test_a_url_with_sentinels_names_the_files_of_tls() -> None:
    url = "rediss+sentinel://one/borg?ssl_ca_certs=/tls/ca.crt&ssl_certfile=/tls/a.crt&ssl_keyfile=/tls/a.key"
    files = {"ssl_ca_certs": "/tls/ca.crt", "ssl_certfile": "/tls/a.crt", "ssl_keyfile": "/tls/a.key"}
    found = redis_url.read_sentinel_url(url)
    assert found is not None
    assert found.options == {"ssl": True, **files}
    assert redis_url.celery_tls(url) == {"ssl_cert_reqs": "required", **files}
    assert redis_url.celery_tls("redis+sentinel://one/borg") is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+sentinel://one:26379", "the URL lacks the name"),
        ("redis+sentinel://one:26379,:5/borg", "a host or its port is wrong"),
        ("redis+sentinel://one:26379,two:port/borg", "a host or its port is wrong"),
        ("redis+sentinel://one:26379/borg/x", "is not the number of a Redis database"),
        ("redis+sentinel://one:26379/borg?ssl_ca_certs=/ca.crt", "a wrong parameter"),
        ("rediss+sentinel://one:26379/borg?ssl_verify=no", "a wrong parameter"),
    ],
)
def test_a_wrong_url_with_sentinels_says_what_is_wrong(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        redis_url.read_sentinel_url(url)
