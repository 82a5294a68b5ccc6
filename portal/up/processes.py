"""The processes of one host. For each process, this module lists the processes that must be up before it starts."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from portal.up.home import Home
from portal.up.options import Options
from portal.up.supervision import forks, probes
from portal.up.supervision.process_keeper import Spec

ENGINES = ("postgres", "redis")
PRELOAD = "preload"
# The longest notice between SIGTERM and SIGKILL that a job file may request.
LONGEST_NOTICE_S = 3600.0

_BORGLET = (sys.executable, "-m", "borglet")
_CELERY = (sys.executable, "-m", "celery", "-A", "portal.celery")
_WORKER = ("worker", "--without-gossip", "--without-mingle", "--include", "portal.up.supervision.pulse")


# The space in the command line of the preload process, which its forks overwrite with their own command.
_COMMAND_BYTES = 400


def preload(home: Home, env: Mapping[str, str]) -> Spec:
    """Return the process that imports the code of all servers once, and then forks the servers."""
    path = _preload_socket(home)
    return Spec(
        name=PRELOAD,
        argv=(sys.executable, "-m", "portal.up.preload", str(path), "." * _COMMAND_BYTES),
        env=env,
        ready=partial(forks.accepts, path),
        alive=partial(forks.accepts, path),
    )


def schema(options: Options, home: Home, env: Mapping[str, str], result: Path) -> Spec:
    """Return a process that migrates the database and creates the cells, a tenant and users if they are missing."""
    argv = (sys.executable, "-m", "portal.up.schema", str(result), *options.cells)
    return Spec("schema", argv, env=env, start_s=600.0, preload=_preload_socket(home))


def _preload_socket(home: Home) -> Path:
    return home.run / f"{PRELOAD}.sock"


def servers(options: Options, home: Home, env: Mapping[str, str]) -> list[Spec]:
    """Return the server processes: a master per cell, and one of each other kind. The start of the portal waits until
    all of them are ready.
    """
    host = options.host
    return [
        Spec(
            name="web",
            argv=(sys.executable, "-m", "portal.web", "--host", host, "--port", str(options.port)),
            env=env,
            needs=(*ENGINES, PRELOAD),
            ready=partial(probes.http_ok, host, options.port, "/readyz"),
            alive=partial(probes.http_ok, host, options.port, "/healthz"),
            preload=_preload_socket(home),
        ),
        # The link touches a file in its loop. A probe by TLS would wait behind the handshakes of 10,000 machines.
        _beating("link", (sys.executable, "-m", "scheduling.link"), home, env, longest_s=30.0),
        _beating(
            "worker",
            (
                *(*_CELERY, *_WORKER, "--pool", "threads", "--concurrency", "4"),
                *("--queues", "borg", "--hostname", "worker@%h", "--loglevel", "INFO"),
            ),
            home,
            env,
            longest_s=60.0,
        ),
        *(_master(of_cell("master", cell, options), cell, home, env) for cell in options.cells),
        _beating(
            "beat",
            (
                *(*_CELERY, "beat", "--loglevel", "INFO"),
                *("--scheduler", "portal.up.supervision.pulse_beat:PulsingScheduler"),
            ),
            home,
            env,
            longest_s=60.0,
        ),
        Spec(
            name="resolver",
            argv=(sys.executable, "-m", "naming.server"),
            env=env,
            needs=("postgres", PRELOAD),
            ready=partial(probes.dns_answers, host, options.dns_port, options.zone),
            alive=partial(probes.dns_answers, host, options.dns_port, options.zone),
            preload=_preload_socket(home),
        ),
    ]


def spares(options: Options, home: Home, env: Mapping[str, str]) -> list[Spec]:
    """Return the standby masters of each cell, and its second scheduler, which is idle until an SRE enables it for
    batch jobs. The start of the portal does not wait for them.
    """
    return [
        _master(of_cell(name, cell, options), scheduler, home, env)
        for cell in options.cells
        for name, scheduler in (
            *((f"standby-{number + 1}", cell) for number in range(options.standbys)),
            ("master-batch", f"{cell}.batch"),
        )
    ]


def of_cell(name: str, cell: str, options: Options) -> str:
    """Return the name of a process of a cell. The processes of the first cell have no cell in their names."""
    return name if cell == options.cell else f"{name}-{cell}"


def _master(name: str, scheduler: str, home: Home, env: Mapping[str, str]) -> Spec:
    """Return a process that runs a scheduler of the cell, or is its standby. `scheduler`: CELL or `CELL.batch`."""
    return _beating(
        name,
        (sys.executable, "-m", "scheduling.master", scheduler),
        home,
        env,
        # A master that waits for a lock of PostgreSQL or loads a large cell is busy, not dead. It loses its lease after
        # this time (`scheduling.master.lease.STUCK_AFTER_S`).
        longest_s=300.0,
        needs=("postgres", PRELOAD),
        # SIGKILL loses nothing: the master has committed its results, and the next one sees that it has ended.
        stop_signal=signal.SIGKILL,
    )


def _beating(
    name: str,
    argv: Sequence[str],
    home: Home,
    env: Mapping[str, str],
    *,
    longest_s: float,
    stop_signal: signal.Signals = signal.SIGTERM,
    needs: tuple[str, ...] = (*ENGINES, PRELOAD),
) -> Spec:
    """Return the description of a process without a port. The process touches its heartbeat file, and its checks fail
    if the file was not touched for `longest_s` seconds.
    """
    pulse = home.run / f"{name}.pulse"
    probe = partial(probes.heartbeat, pulse, longest_s)
    return Spec(
        name=name,
        argv=argv,
        # The preload process has run Django's system checks for all Celery processes. They touch 12 MiB of memory.
        env={**env, "BORG_PULSE": str(pulse), "CELERY_SKIP_CHECKS": "1"},
        needs=needs,
        pulse=pulse,
        preload=_preload_socket(home),
        ready=probe,
        alive=probe,
        stop_signal=stop_signal,
    )


def machines(options: Options, home: Home, env: Mapping[str, str], joins: Mapping[str, str]) -> list[Spec]:
    """Return the Borglet of this host, and a process per cell that simulates machines if the options request it.

    `joins`: join tokens by process name, each valid once. A process that has joined the cell has no token here.
    """
    specs = [
        Spec(
            name="borglet",
            argv=(
                *(*_BORGLET, "run", "--home", str(home.borglet), "--link", options.link_url),
                *("--hostname", options.hostname, "--address", options.host),
            ),
            env={**env, **_join(joins, "borglet")},
            needs=("link",),
        )
    ]
    if options.fleet:
        for cell in options.cells:
            name = of_cell("fleet", cell, options)
            folder = str(home.fleet.with_name(name))
            specs.append(
                Spec(
                    name=name,
                    argv=(*_BORGLET, "fleet", "--home", folder, "--link", options.link_url, *options.fleet),
                    env={**env, **_join(joins, name)},
                    needs=("link",),
                )
            )
    return specs


def machine_names(options: Options) -> list[str]:
    """Return the names of the processes that start or hold tasks. They stop first, so that the servers do not see the
    tasks end.
    """
    return ["borglet", *(of_cell("fleet", cell, options) for cell in options.cells)]


def stop_tasks(home: Home, env: Mapping[str, str], *, notice_s: float = LONGEST_NOTICE_S) -> Spec:
    """Return the process that stops all tasks of this host. `notice_s`: the longest time in seconds from SIGTERM to
    SIGKILL.

    It ends when all tasks have ended. If it hangs, the supervisor kills it 60 s after `notice_s`.
    """
    argv = (*_BORGLET, "stop-all", "--home", str(home.borglet), "--notice-s", str(notice_s))
    return Spec("stop-tasks", argv, env=env, start_s=notice_s + 60.0)


def _join(joins: Mapping[str, str], name: str) -> dict[str, str]:
    return {"BORGLET_JOIN_TOKEN": joins[name]} if name in joins else {}
