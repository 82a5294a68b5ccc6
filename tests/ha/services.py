"""The services of hosts: programs that run until a fault ends them, and that start again, as under systemd."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from portal.up.supervision.account import SystemUser
from tests.ha.network import Host, send

# Lets a program see another time of day. Its monotonic clock stays right, as it does when a clock is set wrong.
_FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
_RESTARTED_S = 60.0
_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


@dataclass
class Service:
    """A program on a host. `log`: the file that gets its output. `account`: its user, None for root.

    `restart_s`: after this many seconds the host starts the service again, if it has ended.
    `also`: the name of a program that the service starts outside of its own process tree (Patroni starts `postgres`).
    `after`: the command that runs when the service has ended, as `ExecStopPost` of a unit.
    """

    host: Host
    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    account: SystemUser | None = None
    cwd: Path = Path("/")
    restart_s: float = 1.0
    also: str = ""
    after: Sequence[str] = ()
    _skew_s: int = 0
    _entered: subprocess.Popen[bytes] | None = None
    _ended_at: float | None = None

    def start(self) -> None:
        self._entered = self._run(self.account.command(self.argv) if self.account else self.argv)
        self._ended_at = None

    def _run(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.host.inside.command(*argv),
                env={**_PATH, **self.env, **self._clock()},
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the service, parents first."""
        found: list[psutil.Process] = []
        if self._entered is not None and self._entered.poll() is None:
            found = psutil.Process(self._entered.pid).children(recursive=True)
        if self.also:
            known = {process.pid for process in found}
            found += [one for one in self.host.inside.processes() if one.pid not in known and _name(one) == self.also]
        return found

    def kill(self) -> None:
        """Kill the first process of the service, or of the program `also`."""
        found = [
            one for one in self.processes() if not self.also or (_name(one) == self.also and "-D" in one.cmdline())
        ]
        send(found[:1], signal.SIGKILL)

    def pause(self) -> None:
        """Stop all processes of the service with SIGSTOP."""
        send(self.processes(), signal.SIGSTOP)

    def restart_in(self, tree: Path) -> None:
        """End the service with SIGTERM, and return when it has started again, with the source in the folder `tree`.
        Raises `TimeoutError` if this takes longer than a minute.
        """
        self.env = {**self.env, "PYTHONPATH": str(tree)}
        if "DJANGO_SETTINGS_MODULE" in self.env:
            self.cwd = tree
        entered = self._entered
        send(self.processes()[:1], signal.SIGTERM)
        wait_until(lambda: self._entered is not entered, _RESTARTED_S, f"{self.name} restarts after SIGTERM")

    def resume(self) -> None:
        send(self.processes(), signal.SIGCONT)
        if self._entered is not None:  # `nsenter` has stopped too, because its child stopped
            self._entered.send_signal(signal.SIGCONT)

    def skew(self, seconds: int) -> None:
        """Kill all processes of the service. It starts again with a clock that is this many seconds ahead."""
        self._skew_s = seconds
        send(self.processes(), signal.SIGKILL)

    def restart_if_ended(self, now: float) -> bool:
        """Start the service if it ended `restart_s` seconds ago. Return whether it was started."""
        if self._entered is None or self._entered.poll() is None:
            return False
        if self._ended_at is None:
            self._ended_at = now
            if self.after:
                self._run(self.after)
        if now - self._ended_at < self.restart_s:
            return False
        self.start()
        return True

    def _clock(self) -> Mapping[str, str]:
        if not self._skew_s:
            return {}
        if _FAKETIME is None:
            raise RuntimeError("a wrong clock needs libfaketime; `make ha-test` installs it")
        return {"LD_PRELOAD": str(_FAKETIME), "FAKETIME": f"+{self._skew_s}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


class Services:
    """All services, and a thread that starts those again that have ended."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], Service] = {}
        self._down: set[str] = set()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="services", daemon=True)

    def __enter__(self) -> Services:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def start(self, service: Service) -> Service:
        with self._lock:
            service.start()
            self._all[service.host.name, service.name] = service
        return service

    def find(self, host: str, name: str) -> Service | None:
        """Return the service of a host, or None if the host does not run it."""
        return self._all.get((host, name))

    def on(self, host: str, name: str) -> Service:
        return self._all[host, name]

    def switch_off(self, hosts: Sequence[Host]) -> None:
        """Kill all processes of some hosts. They stay off until `switch_on`."""
        with self._lock:
            self._down |= {host.name for host in hosts}
            send([process for host in hosts for process in host.inside.processes()], signal.SIGKILL)

    def switch_on(self, hosts: Sequence[Host]) -> None:
        """Start the services of some hosts again."""
        with self._lock:
            self._down -= {host.name for host in hosts}

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            with self._lock:
                for service in self._all.values():
                    if service.host.name not in self._down:
                        service.restart_if_ended(time.monotonic())


def wait_until(condition: Callable[[], object], timeout_s: float, what: str, *, every_s: float = 0.05) -> float:
    """Wait until a condition holds, and return the seconds that it took. Raises `TimeoutError` that names `what`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(every_s)
    return time.monotonic() - began


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""
