"""`python -m portal.up`, the program of `make up`: start all processes on this host and run until Ctrl-C.

Exit status: 0 after Ctrl-C or SIGTERM, 1 if the start failed, 2 if a setting is not valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from portal.up import engines, processes
from portal.up.environment import check, environment, ignored_settings, machine_environment
from portal.up.home import Home, HomeError, client_toml, write_private
from portal.up.options import TENANT, OptionError, Options
from portal.up.supervision.account import AccountError
from portal.up.supervision.process_keeper import wait_for_either
from portal.up.supervision.supervisor import ProcessSupervisor, SupervisorError, stop_leftovers
from serving.ports import NoPort, check_free

log = logging.getLogger("portal.up")

_ENGINES_S = 90.0  # PostgreSQL may have to replay its log after a crash
_PROCESSES_S = 120.0


class Up:
    """One run of `make up`: all processes of a portal whose data is in one folder (BORG_HOME)."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.home = Home(options.home)
        self.supervisor = ProcessSupervisor(run_folder=self.home.run, log_folder=self.home.log)
        self.machine_env = machine_environment(options, os.environ)
        self.generated: dict[str, Any] = {}
        self.hurried = asyncio.Event()
        self.sockets: set[Path] = set()

    async def start(self) -> None:
        """Start all processes, and return when they are up.

        Raises `NoPort` if a port is in use, and `EngineError`, `SupervisorError` or `HomeError` if a process cannot
        start.
        """
        if stopped := await asyncio.to_thread(stop_leftovers, self.home.run):
            log.warning("Stopped processes of an earlier start: %s", ", ".join(stopped))
        check_free(self.options.host, self.options.ports, udp=["DNS_PORT"])
        self.home.reset_metrics()
        postgres = await asyncio.to_thread(engines.prepare_postgres, self.options.home)
        redis = await asyncio.to_thread(engines.prepare_redis, self.options.home)
        self.sockets = {postgres.sockets, redis.sockets}
        key = self.home.secrets_read()["secret_key"]
        env = environment(
            self.options,
            os.environ,
            database_url=postgres.url,
            redis_url=redis.url,
            secret_key=key,
            secret_keys=self.home.secret_keys_read(),
        )
        self.supervisor.start([postgres, redis, processes.preload(self.home, env)])
        await self.supervisor.wait_up(_ENGINES_S)
        joins = await self._prepare_database(env)
        self.supervisor.start(
            [
                *processes.servers(self.options, self.home, env),
                *processes.machines(self.options, self.home, self.machine_env, joins),
            ]
        )
        await self.supervisor.wait_up(_PROCESSES_S)
        self.supervisor.start(processes.spares(self.options, self.home, env))

    async def stop(self) -> None:
        """Stop the Borglets first, then the tasks, then the server processes, and PostgreSQL and Redis last."""
        await self.supervisor.stop(processes.machine_names(self.options))
        if "borglet" in self.supervisor.keepers:
            try:
                await self._stop_tasks()
            except SupervisorError as error:
                log.error("Tasks may still run: %s", error)
        await self.supervisor.stop()
        for folder in self.sockets:  # not empty if an engine was killed; the next start reuses the folder
            with contextlib.suppress(OSError):
                folder.rmdir()

    def hurry(self) -> None:
        """Make `stop` end immediately. It then kills processes and tasks instead of waiting for their end."""
        self.hurried.set()
        self.supervisor.hurry()

    async def _stop_tasks(self) -> None:
        step = processes.stop_tasks(self.home, self.machine_env)
        if not await self.supervisor.run_once(step, until=self.hurried):
            await self.supervisor.run_once(processes.stop_tasks(self.home, self.machine_env, notice_s=0.0))

    def banner(self, took_s: float) -> str:
        """Return the text that the terminal shows after the start. `took_s`: the duration of the start in seconds."""
        options, users = self.options, (self.generated["sre"], self.generated["demo"])
        lines = [
            f"Borg Portal is up: {options.portal_url}",
            f"  SRE console   {options.portal_url}/admin/",
            f"  DNS           {options.host}:{options.dns_port}, {_zones(options)}",
            f"  Borglet link  {options.link_url}",
            *(f"  Sign in as    {user['username']} / {user['password']}" for user in users),
            f"  Data and logs {self.home.path}",
            f"Ready after {took_s:.1f} s. Press Ctrl-C to stop everything, tasks included.",
        ]
        return "\n".join(lines)

    async def _prepare_database(self, env: Mapping[str, str]) -> dict[str, str]:
        """Migrate the database, create the first cell, tenant and users if they are missing, and store the generated
        secrets. Return the join tokens of machines, by the name of the process that uses the token.
        """
        result = self.home.run / "bootstrap.json"
        if result.exists():  # the previous run crashed before it merged the file
            self._keep(result)
        await self.supervisor.run_once(processes.schema(self.options, self.home, env, result))
        joins = self._keep(result)
        dns = f"{self.options.host}:{self.options.dns_port}"
        shared = {"url": self.options.portal_url, "cell": self.options.cell, "zone": self.options.zone, "dns": dns}
        own = {
            "admin": {"token": self.generated["sre"]["token"]},
            "demo": {"token": self.generated["demo"]["token"], "tenant": TENANT},
        }
        before = self.home.client.read_text() if self.home.client.exists() else ""
        write_private(self.home.client, client_toml(shared, own, before=before))
        return joins

    def _keep(self, result: Path) -> dict[str, str]:
        """Move the secrets that the process wrote to the file `result` to the secrets file. Return the join tokens of
        machines, by process name; each token is valid once.
        """
        news = json.loads(result.read_text())
        joins: dict[str, str] = news.pop("join_tokens", {})
        self.generated = self.home.secrets_add(news)
        result.unlink()
        return joins


async def run(options: Options) -> None:
    """Start all processes, wait for a signal, and stop them. A second signal kills all processes immediately."""
    up = Up(options)
    began_s = time.monotonic()
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            up.hurry()
            return
        stop.set()
        _print(
            "Stopping everything. Each task gets its notice between SIGTERM and SIGKILL. "
            "Press Ctrl-C again to stop at once."
        )

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    starting = asyncio.ensure_future(up.start())
    try:
        await wait_for_either(starting, stop)
        if starting.done():
            starting.result()
            _print(up.banner(time.monotonic() - began_s))
            await wait_for_either(up.supervisor.broken, stop)
            if up.supervisor.broken.done():
                up.supervisor.broken.result()
    finally:
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await starting
        await up.stop()


def main() -> int:
    """Run `make up` with the options in the environment. Return the exit status."""
    try:
        options = Options.read(os.environ)
        check(options, os.environ)
    except OptionError as error:
        print(error, file=sys.stderr)
        return 2
    home = Home(options.home)
    try:
        home.prepare()
        with home.lock():
            _log_to(home)
            for line in ignored_settings(options, os.environ):
                log.warning("%s", line)
            asyncio.run(run(options))
    except (HomeError, AccountError, engines.EngineError, NoPort, SupervisorError) as error:
        print(error.strerror if isinstance(error, NoPort) else error, file=sys.stderr)
        return 1
    _print("Stopped.")
    return 0


def _zones(options: Options) -> str:
    zones = [f"{cell}.{options.zone}" for cell in options.cells]
    return f"{'zone' if len(zones) == 1 else 'zones'} {', '.join(zones)}"


def _print(text: str) -> None:
    """Print `text` to the terminal. If the terminal has closed, log that it has closed."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - otherwise Python's last flush fails again
        log.info("The terminal is closed")  # without the text, which may contain passwords


def _log_to(home: Home) -> None:
    """Write all log lines to `up.log`, and warnings also to the terminal."""
    file = RotatingFileHandler(home.log / "up.log", maxBytes=4 * 2**20, backupCount=2)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    terminal.setFormatter(logging.Formatter("%(message)s"))
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [file, terminal]


if __name__ == "__main__":
    sys.exit(main())
