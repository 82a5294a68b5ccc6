"""The life of one process under the supervisor:

    waiting ─ needs are up ─► starting ─ ready ─► up ─ ended, or unwell too often ─► resting ─ delay ─► waiting
                                 └────── ended, or never ready ──────────────────────────┘

The *needs* of a process are the processes that must be up before it starts. A probe is a check that the process
works. A failed probe counts only while all needs are up, because the web server is not at fault when PostgreSQL is
down. A process that uses CPU but fails its probes is slow, not unwell. It gets more time
(`portal.up.supervision.time_limits`), and the supervisor logs a message. Each start that takes too long doubles the
time limit of the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portal.up.supervision import children, forks
from portal.up.supervision.account import SystemUser
from portal.up.supervision.logfiles import LogFile
from portal.up.supervision.probes import Probe
from portal.up.supervision.restart_pauses import Restarts
from portal.up.supervision.time_limits import ProcessPatience, Work, work_of

log = logging.getLogger("portal.up")

ChildProcess = subprocess.Popen[bytes] | forks.ForkedProcess

_LAST_LINE = 300  # characters of the last log line of a process, for the message about its end
_MOST_DOUBLINGS = 4  # of the time limit for a start


@dataclass(frozen=True, slots=True)
class Spec:
    """A description of a process that the supervisor keeps running.

    The supervisor calls `ready` during a start, and `alive` every `alive_every_s` seconds after the start. A start
    fails after `start_s` seconds. A process is unwell after `unwell_limit` failed calls of `alive` in a row. If the
    process still works (see `time_limits`), the supervisor waits at least ten times as long in both cases. `needs`: the
    names of processes that must be up before this one starts. `pulse`: a file that the process touches to show that it
    works. `preload`: the socket of the process that forks this process; None: the supervisor starts it. `kill_signal`:
    a signal that ends the process at once, together with its own children.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    ready: Probe | None = None
    alive: Probe | None = None
    start_s: float = 60.0
    alive_every_s: float = 5.0
    unwell_limit: int = 3
    stop_signal: signal.Signals = signal.SIGTERM
    stop_s: float = 10.0
    kill_signal: signal.Signals = signal.SIGKILL
    account: SystemUser | None = None
    cwd: Path | None = None
    pulse: Path | None = None
    preload: Path | None = None


class ProcessKeeper:
    """A keeper starts one process, and starts it again when it ends, until `stop` is called. Call all methods in the
    main thread, in its event loop.
    """

    def __init__(self, spec: Spec, *, record: Path, logfile: LogFile, needs: Sequence[ProcessKeeper] = ()) -> None:
        self.spec = spec
        self.record = record
        self.logfile = logfile
        self.needs = tuple(needs)
        self.why = "not started yet"
        self.up = asyncio.Event()
        self.restarts = Restarts()
        self.pid: int | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._slow_starts = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, on_error: Callable[[BaseException], None]) -> None:
        """Start the process, and start it again whenever it ends. If the keeper itself fails, it calls `on_error`."""

        def report(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                on_error(error)

        self._task = asyncio.create_task(self._keep(), name=f"keep {self.spec.name}")
        self._task.add_done_callback(report)

    async def stop(self) -> None:
        """Send the process its stop signal. Send its kill signal after `stop_s` seconds, or as soon as `hurry` is
        called. Send SIGKILL if it still runs 10 s later.
        """
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task})  # an error in it was passed to `on_error`

    def hurry(self) -> None:
        """Make `stop` kill the process immediately."""
        self._hurry.set()

    async def _keep(self) -> None:
        while await self._until_needs_are_up():
            began_s = time.monotonic()
            story = await self._run_once()
            if self._stopping.is_set():
                break
            delay_s = self.restarts.ended(time.monotonic() - began_s)
            self.why = story
            values = (self.spec.name, story, delay_s, self.logfile.path)
            log.warning("%s %s; starting it again in %.1f s; its log is %s", *values)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)

    async def _until_needs_are_up(self) -> bool:
        """Wait until all processes that this one needs are up. Return False if this process must stop before that."""
        for need in self.needs:
            up = asyncio.ensure_future(need.up.wait())
            await wait_for_either(up, self._stopping)
            up.cancel()
        return not self._stopping.is_set()

    async def _run_once(self) -> str:
        """Run the process once. Return a text that says how it ended, such as `ended with status 1`."""
        try:
            if self.spec.pulse is not None:
                self.spec.pulse.unlink(missing_ok=True)
            process = spawn(self.spec, self.logfile, self.record)
        except OSError as error:  # such as a full disk or process table: the next attempt may succeed
            return f"cannot be started: {error}"
        self.pid = process.pid
        ended = end_of(process)
        try:
            story = await self._watch(ended)
            if process.poll() is None:
                await self._end(process, ended)
        finally:
            if process.poll() is None:  # after an error in the keeper, leave no process behind
                process.kill()
                process.wait()
            self.up.clear()
            self.pid = None
            ended.cancel()
            self.record.unlink(missing_ok=True)
        return story or _ending(process.returncode, self.logfile.tail(1))

    async def _watch(self, ended: asyncio.Future[None]) -> str | None:
        """Watch the process until it ends or the supervisor stops, and then return None. If the start fails or the
        process is unwell, return the reason; the caller then ends the process.
        """
        if (complaint := await self._until_ready(ended)) is not None:
            self._slow_starts += 1
            return complaint
        if ended.done() or self._stopping.is_set():
            return None
        self._slow_starts = 0
        self.why = "ready"
        self.up.set()
        log.info("%s is up (pid %s)", self.spec.name, self.pid)
        return await self._until_unwell(ended)

    async def _until_ready(self, ended: asyncio.Future[None]) -> str | None:
        """Wait until the process is ready, has ended, or the supervisor stops, and then return None. If the start takes
        too long, return the reason.
        """
        patience, began = self._patience(self.start_limit_s), time.monotonic()
        while (complaint := await self._ask(self.spec.ready)) is not None:
            self.why = complaint
            if not self._needs_up():
                patience = self._patience(self.start_limit_s)
            if patience.is_due(now := time.monotonic()):
                found = patience.verdict(now, self.work())
                if found.over:
                    return f"was not ready after {now - patience.began:.0f} s: {found.progress}; {complaint}"
                slow = (self.spec.name, now - patience.began, found.progress, complaint)
                log.warning("%s is still starting after %.0f s: %s; %s", *slow)
            # In proportion to the start so far, so that its end is noticed with a delay of at most a tenth.
            if await self._pause(ended, min(0.5, max(0.05, (time.monotonic() - began) / 10))):
                return None
        return None

    async def _until_unwell(self, ended: asyncio.Future[None]) -> str | None:
        """Probe the process until it ends or the supervisor stops, and then return None. If its probes fail too long
        and it shows no sign of work, return the problem.

        New lines in its log do not count as a sign of work.
        """
        patience: ProcessPatience | None = None
        unwell = 0
        while not await self._pause(ended, self.spec.alive_every_s):
            complaint = await self._ask(self.spec.alive)
            if complaint is None or not self._needs_up():
                unwell, patience = 0, None
                continue
            unwell += 1
            limit_s = self.spec.alive_every_s * (self.spec.unwell_limit - 1)
            patience = patience or self._patience(limit_s, count_log=False)
            if unwell < self.spec.unwell_limit or not patience.is_due(now := time.monotonic()):
                continue
            found = patience.verdict(now, self.work())
            if found.over:
                return f"is unwell: {found.progress}; {complaint}"
            log.warning("%s answers slowly: %s; %s", self.spec.name, found.progress, complaint)
        return None

    @property
    def start_limit_s(self) -> float:
        """Return the time limit of a start. A start fails if the process shows no sign of work for this time."""
        return float(self.spec.start_s * 2 ** min(self._slow_starts, _MOST_DOUBLINGS))

    def work(self) -> Work:
        """Return the CPU time, log bytes and last heartbeat of the process so far."""
        return work_of(self.pid, self.logfile.path, self.spec.pulse) if self.pid is not None else Work()

    def _patience(self, limit_s: float, *, count_log: bool = True) -> ProcessPatience:
        return ProcessPatience(limit_s, now=time.monotonic(), work=self.work(), count_log=count_log)

    async def _end(self, process: ChildProcess, ended: asyncio.Future[None]) -> None:
        process.send_signal(self.spec.stop_signal)
        await wait_for_either(ended, self._hurry, self.spec.stop_s)
        if not ended.done():
            if not self._hurry.is_set():  # otherwise the process had no time to react
                log.warning("%s did not end after %s; killing it", self.spec.name, self.spec.stop_signal.name)
            process.send_signal(self.spec.kill_signal)
            await asyncio.wait({ended}, timeout=10.0)
        process.poll()

    async def _pause(self, ended: asyncio.Future[None], seconds: float) -> bool:
        """Wait at most `seconds`. Return True if the process has ended or the supervisor stops, and False otherwise."""
        await wait_for_either(ended, self._stopping, seconds)
        return ended.done() or self._stopping.is_set()

    async def _ask(self, probe: Probe | None) -> str | None:
        """Run a probe in a thread, because it may take seconds. Return the problem that it finds, or None."""
        return None if probe is None else await asyncio.to_thread(probe)

    def _needs_up(self) -> bool:
        return all(need.up.is_set() for need in self.needs)


async def wait_for_either(future: asyncio.Future[Any], event: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait until `future` is done, `event` is set, or `timeout_s` seconds have passed."""
    waiting = asyncio.ensure_future(event.wait())
    either: set[asyncio.Future[Any]] = {future, waiting}
    try:
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def spawn(spec: Spec, logfile: LogFile, record: Path) -> ChildProcess:
    """Start a process that writes to its log file. Write its pid to `record`, so that a later supervisor finds it."""
    output = logfile.open()
    try:
        process = _started(spec, output)
    finally:
        os.close(output)
    try:
        children.record_write(record, process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise
    return process


def _started(spec: Spec, output: int) -> ChildProcess:
    if spec.preload is not None:
        return forks.fork(
            spec.preload, spec.argv, name=spec.name, env=spec.env, output=output, death_signal=spec.stop_signal
        )
    return children.spawn(
        spec.argv, env=spec.env, cwd=spec.cwd, output=output, account=spec.account, death_signal=spec.stop_signal
    )


def end_of(process: ChildProcess) -> asyncio.Future[None]:
    """Return a future that is done as soon as the process has ended and its exit status was read."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    descriptor = os.pidfd_open(process.pid)

    def reap() -> None:
        if process.poll() is not None and not ended.done():
            ended.set_result(None)

    def close(_: asyncio.Future[None]) -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)

    loop.add_reader(descriptor, reap)
    ended.add_done_callback(close)
    return ended


def _ending(returncode: int | None, last_line: str) -> str:
    if returncode is None:
        return "did not end after SIGKILL"
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    last = f" ({last_line[:_LAST_LINE]})" if returncode and last_line else ""
    return f"ended with status {returncode}{last}"
