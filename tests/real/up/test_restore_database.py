"""Tests of backups on control hosts (`deploy/ha`): the shipped settings and scripts, with real PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from portal.up import engines
from portal.up.supervision.account import engine_account

_HA = Path(__file__).parents[3] / "deploy" / "ha"
_WITHIN_S = 60.0
_BINARIES = engines.postgres_binaries()


class Server:
    """A PostgreSQL with the shipped settings of the archive. `data`: its data folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.data = name, folder / name, folder / name / "data"
        self._account = engine_account(folder, _BINARIES, _HA)
        engines._own_folder(self.folder, self._account)
        backups = folder / "backups"
        engines._own_folder(backups, self._account)
        self._env = {
            "PATH": os.defpath,
            "LC_ALL": "C",
            "PATRONI_POSTGRESQL_BIN_DIR": str(_BINARIES),
            "PATRONI_POSTGRESQL_DATA_DIR": str(self.data),
            "BORG_HA_NAME": name,
            "PGHOST": str(self.folder),
            "BORG_HA_BACKUPS": str(backups),
            "BORG_HA_BACKUPS_KEEP": "1",
        }

    def run(self, *argv: str | Path, fails: bool = False) -> str:
        """Run a command as the user of PostgreSQL. Return its output, or its errors if it must fail."""
        command = [str(part) for part in argv]
        command = self._account.command(command) if self._account else command
        done = subprocess.run(
            command, env=self._env, cwd=self.folder, text=True, capture_output=True, timeout=_WITHIN_S, check=False
        )
        assert bool(done.returncode) == fails, done.stderr
        return done.stderr.strip() if fails else done.stdout.strip()

    def script(self, name: str, *argv: str, fails: bool = False) -> str:
        return self.run(_HA / "bin" / name, *argv, fails=fails)

    def initialise(self) -> None:
        self.run(
            _BINARIES / "initdb", "-D", self.data, "-U", "postgres", "--no-sync", "--auth", "trust", "--locale", "C"
        )
        shipped = yaml.safe_load((_HA / "etc" / "patroni.yml").read_text())["bootstrap"]["dcs"]["postgresql"][
            "parameters"
        ]
        lines = [
            f"{name} = '{str(value).replace('/opt/borg/deploy/ha', str(_HA))}'"
            for name, value in shipped.items()
            if name.startswith("archive") or name == "restore_command"
        ]
        assert len(lines) == 4
        with (self.data / "postgresql.conf").open("a") as config:
            config.write("\n".join([*lines, "fsync = off", "shared_buffers = 16MB", ""]))

    def copy(self, leader: Server) -> None:
        """Become a standby of another server."""
        self.run(
            *(_BINARIES / "pg_basebackup", "-h", leader.folder, "-U", "postgres", "-D", self.data),
            *("--checkpoint=fast", "--no-sync", "--write-recovery-conf"),
        )

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder}"
        self.run(_BINARIES / "pg_ctl", "-D", self.data, "-w", "-l", self.folder / "log", "-o", options, "start")

    def stop(self) -> None:
        """Kill the server at once, if it runs."""
        if (self.data / "postmaster.pid").exists():
            self.run(_BINARIES / "pg_ctl", "-D", self.data, "-m", "immediate", "stop")

    def sql(self, query: str) -> str:
        return self.run(_BINARIES / "psql", "-h", self.folder, "-U", "postgres", "-Atqc", query)


def until(server: Server, query: str) -> None:
    end = time.monotonic() + _WITHIN_S
    while server.sql(query) != "t":
        assert time.monotonic() < end, query
        time.sleep(0.05)


@pytest.fixture(scope="module")
def leader() -> Iterator[Server]:
    # PostgreSQL's user must reach its folders, and a socket's path has at most 107 bytes.
    folder = Path("/tmp") / f"borg-restore-{os.getpid()}"
    folder.mkdir(mode=0o755)
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder)
        one = Server("c1", folder)
        one.initialise()
        one.start()
        cleanup.callback(one.stop)
        yield one


def test_old_backups_and_their_log_are_removed_and_no_file_of_the_log_is_replaced(leader: Server) -> None:
    backups = leader.folder.parent / "backups"
    leader.script("base-backup")
    (first,) = (backups / "base").iterdir()
    kept = {path.name for path in (backups / "wal").iterdir()}
    time.sleep(1.1)  # the name of a backup has its time in seconds
    leader.sql("SELECT pg_switch_wal()")
    leader.script("base-backup")
    (second,) = (backups / "base").iterdir()
    assert second.name > first.name
    assert not kept & {path.name for path in (backups / "wal").iterdir() if "." not in path.name}
    file = leader.folder / "segment"
    for content, fails in (("one", False), ("one", False), ("two", True)):
        leader.run("sh", "-c", f"printf {content} > {file}")
        told = leader.script("archive-wal", str(file), "0001", fails=fails)
    assert "has other contents" in told
    assert (leader.folder.parent / "backups" / "wal" / "0001").read_text() == "one"
    leader.script("restore-wal", "0002", str(leader.folder / "x"), fails=True)


def test_a_moment_is_restored_although_the_leader_was_lost_before_it_archived(leader: Server) -> None:
    """The leader ends with changes that only the standby has archived. The restore goes back before a mistake."""
    standby = Server("c2", leader.folder.parent)
    leader.sql("CREATE TABLE changes (n int)")
    leader.script("base-backup")
    standby.copy(leader)
    standby.start()
    try:
        assert "not the leader" in standby.script("base-backup")
        leader.sql("ALTER SYSTEM SET archive_command = '/bin/false'")
        leader.sql("SELECT pg_reload_conf()")
        leader.sql("INSERT INTO changes VALUES (1)")
        last = leader.sql("SELECT pg_walfile_name(pg_switch_wal())")
        leader.sql("INSERT INTO changes VALUES (2)")
        until(standby, f"SELECT last_archived_wal >= '{last}' FROM pg_stat_archiver")
        until(standby, "SELECT count(*) = 2 FROM changes")
        leader.stop()
        standby.sql("SELECT pg_promote()")
        until(standby, "SELECT NOT pg_is_in_recovery()")
        standby.sql("INSERT INTO changes VALUES (3)")
        moment = standby.sql("SELECT clock_timestamp()")
        standby.sql("DELETE FROM changes")
        last = standby.sql("SELECT pg_walfile_name(pg_switch_wal())")
        until(standby, f"SELECT last_archived_wal >= '{last}' FROM pg_stat_archiver")
        assert "seems to run" in standby.script("restore-database", moment, fails=True)
    finally:
        standby.stop()

    assert "no base backup" in leader.script("restore-database", "2020-01-01 00:00:00 UTC", fails=True)
    told = leader.script("restore-database", moment)
    assert "the last change is of " in told
    leader.start()
    assert leader.sql("SELECT string_agg(n::text, ' ' ORDER BY n) FROM changes") == "1 2 3"
    assert leader.sql("SHOW recovery_target_time") == ""
    assert list(leader.folder.glob("data.before-*")), "the data before the restore is kept"


def test_a_backup_of_a_server_that_does_not_answer_fails(leader: Server) -> None:
    """Otherwise the timer would report a success each night, as on a standby."""
    away = Server("away", leader.folder.parent)
    assert "connection to server" in away.script("base-backup", fails=True)
