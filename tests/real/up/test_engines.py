"""Tests of real PostgreSQL and Redis in a temporary home: durability, orphaned processes, foreign folders."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from portal.up import engines
from portal.up.engines import Engine, EngineError
from portal.up.supervision import children
from portal.up.supervision.account import passable


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home below a folder that other users cannot enter."""
    return tmp_path / "home"


@contextmanager
def running(engine: Engine) -> Iterator[Engine]:
    try:
        engine.wait_ready(30.0)
        yield engine
    finally:
        engine.stop()


def psql(engine: Engine, command: str) -> str:
    binary = engines.postgres_binaries() / "psql"
    return subprocess.check_output([binary, engine.url, "-Atqc", command], text=True).strip()


def redis_says(engine: Engine, command: str) -> str:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(engine.url.removeprefix("unix://"))
        link.sendall(command.encode() + b"\r\n")
        return link.recv(1000).decode()


def test_postgres_keeps_committed_rows_through_kill_9_and_leaves_no_orphan(home: Path) -> None:
    with running(engines.start(engines.prepare_postgres(home))) as first:
        assert psql(first, "show server_encoding") == "UTF8"
        assert psql(first, "show listen_addresses") == ""
        psql(first, "create table t (n int); insert into t values (42)")
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(10.0)
    with running(engines.start(engines.prepare_postgres(home))) as second:
        assert psql(second, "select n from t") == "42"


def test_an_orphaned_postgres_is_stopped_before_the_next(home: Path) -> None:
    orphan = engines.start(engines.prepare_postgres(home))
    with running(orphan), running(engines.start(engines.prepare_postgres(home))) as second:
        assert orphan.process.wait(10.0) == 0
        assert psql(second, "select 1") == "1"


def test_redis_keeps_its_data_and_stops_its_orphan(home: Path) -> None:
    orphan = engines.start(engines.prepare_redis(home))
    with running(orphan):
        assert redis_says(orphan, "SET k v") == "+OK\r\n"
        with running(engines.start(engines.prepare_redis(home))) as second:
            assert orphan.process.poll() is not None
            assert "v" in redis_says(second, "GET k")
            assert "noeviction" in redis_says(second, "CONFIG GET maxmemory-policy")


def test_a_foreign_socket_folder_is_refused(home: Path) -> None:
    home.mkdir()
    folder = engines.socket_folder(home, None)
    folder.rmdir()
    folder.symlink_to("/etc")
    try:
        with pytest.raises(EngineError, match="remove it and start again"):
            engines.socket_folder(home, None)
    finally:
        folder.unlink()


def test_data_of_another_major_version_is_refused(home: Path) -> None:
    (home / "postgres").mkdir(parents=True)
    (home / "postgres" / "PG_VERSION").write_text("16\n")
    with pytest.raises(EngineError, match=r"created by PostgreSQL 16, but this version runs 18.*make backup"):
        engines.prepare_postgres(home)


def test_files_outside_a_data_directory_are_left_alone(home: Path) -> None:
    (home / "postgres").mkdir(parents=True)
    (home / "postgres" / "thesis.tex").touch()
    with pytest.raises(EngineError, match="not a data directory"):
        engines.prepare_postgres(home)
    assert (home / "postgres" / "thesis.tex").exists()


@pytest.mark.parametrize("mode", [0o700, 0o711])
def test_under_root_only_a_closed_folder_costs_a_capability(home: Path, mode: int) -> None:
    home.parent.chmod(mode)
    launch = engines.prepare_redis(home)
    launch.sockets.rmdir()
    somebody = 65534
    assert passable(home.parent, somebody, somebody) == (
        mode == 0o711 and passable(home.parents[1], somebody, somebody)
    )
    if os.geteuid() == 0:
        assert launch.account is not None
        assert launch.account.uid != 0
        assert bool(launch.account.capabilities) == (not passable(home, launch.account.uid, launch.account.gid))
    else:
        assert launch.account is None


def test_an_engine_that_dies_at_its_start_is_reported(home: Path) -> None:
    launch = engines.prepare_redis(home)
    engine = Engine(launch, children.spawn(["false"]))
    with pytest.raises(EngineError, match="redis ended with status 1 during its start"):
        engine.wait_ready(5.0)
    engine.stop()
