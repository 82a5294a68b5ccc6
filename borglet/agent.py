"""The loop of a Borglet. It passes events to `AgentState`, which decides, and carries out the resulting instructions.

    link ── polled ──► Agent ── handle ──► AgentState
                         │ ◄─ instructions ─┘
                         ├─► store.save      (at once, before anything else)
                         ├─► packages.install, and the values of secrets
                         ├─► runtime.start, stop, resize, remove
                         └─► prober.probe

Everything runs on one asyncio loop. A failure becomes an event. An unexpected error ends the process; the tasks
continue, and the next Borglet adopts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import assert_never

import msgspec

from borglet.health_prober import Prober
from borglet.identity.saved_state import IdentityStore
from borglet.messages import (
    OLDEST_PROTOCOL,
    TIME_LIMITS_SINCE,
    WIRE_REPORTS_SINCE,
    LogChunk,
    LogRequest,
    Poll,
    Removal,
    Report,
    RunTask,
    TaskIdentity,
    TaskKey,
    opened,
    without_time_limits,
)
from borglet.packages.base import PackageMissing, Packages
from borglet.pressure.control_loop import Guard
from borglet.pressure.victims import PressureTenant
from borglet.runtimes.base.runtime import Runtime, StartFailed
from borglet.state import events, instructions
from borglet.state.agent_state import AgentState
from borglet.task_secrets import SecretSource, SecretValet
from borglet.usage_windows import WINDOW_S, Windows

log = logging.getLogger(__name__)

Clock = Callable[[], float]


def steady_clock() -> Clock:
    """Return a clock of seconds since the epoch that never runs backwards, even if the machine's clock is set."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Times of a Borglet's agent: the interval between measurements of usage, the length of the usage windows that it
    reports, and the longest wait for the first health checks.
    """

    sample_interval_s: float = 5.0
    window_s: int = WINDOW_S  # length of the usage windows that the Borglet reports for history; 0: no windows
    settle_s: float = 1.0  # after adoption, the first report waits this long for the first answers of health checks


class Agent:
    """The agent of one machine. Call `open` first, and then pass each poll of the link to `polled`. `failed`: a future
    for the error that ends the Borglet.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: IdentityStore,
        prober: Prober,
        packages: Packages,
        *,
        clock: Clock,
        settings: AgentSettings = AgentSettings(),
        guard: Guard | None = None,
        secrets: SecretSource | None = None,
    ) -> None:
        self.state = AgentState()
        self.runtime = runtime
        self.packages = packages
        self.packages.bind(self.state.packages_in_use)
        self._installs: dict[TaskKey, asyncio.Task[None]] = {}
        self._secrets = SecretValet(secrets, runtime.renew_secrets)
        self._store, self._prober, self._clock, self._settings = store, prober, clock, settings
        self._windows = Windows(random.Random(), span_s=settings.window_s) if settings.window_s else None
        self._listeners: list[Callable[[], None]] = []
        self._allocs_due: instructions.HoldAllocs | None = None  # failed, to be tried again
        self._work: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._guard = guard
        self._removals: tuple[Removal, ...] = ()
        self.failed: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Continue to manage the tasks that still run, record which other tasks have ended, and restart tasks that
        should run. The master is not needed.
        """
        self.failed = asyncio.get_running_loop().create_future()
        presences = await self.runtime.presences()
        self.handle(events.Adopted(self._store.load(), tuple(presences), tuple(self.runtime.allocs())))
        self._spawn(self._watch_ends())

    async def settle(self) -> None:
        """Wait until the tasks of an earlier Borglet have answered their first health check, at most `settle_s`
        seconds.
        """
        settled = asyncio.Event()
        self.subscribe(settled.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.settle_s):
                while self.state.probing:
                    settled.clear()
                    await settled.wait()
        self._listeners.remove(settled.set)

    async def close(self) -> None:
        """Release all resources. All tasks keep running."""
        if self._timer is not None:
            self._timer.cancel()
        running = list(self._work)
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._secrets.close()
        await self.packages.close()
        await self.runtime.close()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change that the Borglet should report without waiting for the next poll."""
        self._listeners.append(listener)

    # -- input

    def polled(self, session: int, poll: Poll) -> None:
        if poll.windows_until and self._windows is not None:
            self._windows.stored(poll.windows_until)
        if poll.desired is None and self.state.unmoved_by(session):
            return
        self.handle(events.Polled(session, poll.sequence, poll.desired))

    def identified(self, identities: Sequence[TaskIdentity]) -> None:
        """Pass new identities of tasks (signed tokens) to the runtime."""
        self._spawn(self._identify(identities))

    async def _identify(self, identities: Sequence[TaskIdentity]) -> None:
        for identity in identities:
            try:
                await self.runtime.identify(identity.key, identity.token)
            except OSError as error:
                log.warning(
                    "cannot store the new identity of task %s, which keeps its old one: %s", identity.key, error
                )

    def report(self, logs: list[LogChunk], session: int, poll: Poll, *, protocol: int = OLDEST_PROTOCOL) -> Report:
        """Return the report that answers `poll`. `logs`: the parts of logs that `poll` requests. `session`: the number
        of the connection on which the poll arrived. `protocol`: the protocol version of this connection.
        """
        report = self.state.wire_report(
            session=session,
            sequence=poll.sequence,
            logs=logs,
            packages=self.packages.installed(),
            addresses=self.runtime.addresses(),
        )
        if self._windows is not None and (windows := self._windows.due(self._clock())):
            report = msgspec.structs.replace(report, windows=windows)
        if protocol < TIME_LIMITS_SINCE:
            report = without_time_limits(report)
        return opened(report) if protocol < WIRE_REPORTS_SINCE else report

    async def read_logs(self, poll: Poll) -> list[LogChunk]:
        """Return the parts of logs that `poll` requests."""
        return list(await asyncio.gather(*(self._read_log(request) for request in poll.logs)))

    async def _read_log(self, request: LogRequest) -> LogChunk:
        try:
            return await self.runtime.read_log(request)
        except Exception as error:
            log.exception("cannot read the log of task %s", request.key)
            return LogChunk(request.request_id, 0, 0, "", error=f"the machine cannot read the log: {error}")

    async def sample(self) -> None:
        """Measure the usage of all tasks once. If CPU, memory or disk is short, limit or end tasks."""
        usages = await self.runtime.sample()
        self.handle(events.Sampled(usages))
        if self._windows is not None:
            known = [(inc.task, usages[inc.key]) for inc in self.state.incarnations() if inc.key in usages]
            self._windows.add(known, self._clock())
        if self._guard is not None:
            await self._guard_neighbours(self._guard)
        if self._allocs_due is not None:
            await self._hold_allocs(self._allocs_due)
        elif self.state.allocs:
            self._report_allocs()

    async def _guard_neighbours(self, guard: Guard) -> None:
        tenants = [PressureTenant(inc.task, inc.usage) for inc in self.state.incarnations() if inc.has_processes]
        orders = await guard.look(tenants, self._clock())
        for victim in orders.end:
            self.handle(events.MemoryPressure(victim.key, victim.detail))
        if orders.removals != self._removals:
            self._removals = orders.removals
            self.handle(events.RemovalsWanted(orders.removals))

    async def sample_forever(self) -> None:
        while True:
            try:
                await self.sample()
            except Exception:
                log.exception("cannot measure the usage of tasks; the next sample tries again")
            await self._pause(self._settings.sample_interval_s)

    async def _pause(self, most_s: float) -> None:
        """Sleep for `most_s` seconds, until the usage is measured again. Return earlier if little memory of the machine
        is free.
        """
        if self._guard is None:
            await asyncio.sleep(most_s)
            return
        try:
            await self._guard.pause(most_s)
        except Exception:
            log.exception("cannot read the machine's free memory; the next sample tries again")
            await asyncio.sleep(most_s)

    async def _watch_ends(self) -> None:
        while True:
            presence = await self.runtime.next_end()
            assert presence.exit is not None, f"the runtime reported the end of {presence.key} without an exit"
            self.handle(events.Ended(presence.key, presence.run, presence.exit))

    def handle(self, event: events.Event) -> None:
        """Pass an event to `AgentState`, and carry out the instructions that it returns. If an instruction immediately
        causes more events, handle these events before returning.
        """
        before = self.state.version
        pending: deque[events.Event] = deque([event])
        while pending:
            for instruction in self.state.handle(pending.popleft(), now=self._clock()):
                answer = self._execute(instruction)
                if answer is not None:
                    pending.append(answer)
        self._arm()
        if self.state.version != before:
            for listener in tuple(self._listeners):
                listener()

    # -- output

    def _execute(self, instruction: instructions.Instruction) -> events.Event | None:
        match instruction:
            case instructions.Save():
                return self._save(instruction)
            case instructions.Install():
                self._installs[instruction.task.key] = self._spawn(self._install(instruction))
            case instructions.CancelInstall():
                install = self._installs.pop(instruction.key, None)
                if install is not None:
                    install.cancel()
                self._secrets.forget(instruction.key)
            case instructions.Start():
                self._spawn(self._start(instruction))
            case instructions.Terminate():
                self._spawn(self._terminate(instruction))
            case instructions.Resize():
                self._spawn(self._resize(instruction))
            case instructions.Remove():
                self._spawn(self._remove(instruction))
            case instructions.HoldAllocs():
                self._spawn(self._hold_allocs(instruction))
            case instructions.Probe():
                self._spawn(self._probe(instruction))
            case _:
                assert_never(instruction)
        return None

    def _save(self, instruction: instructions.Save) -> events.Event:
        try:
            self._store.save(instruction.remembered)
        except OSError as error:
            log.error("cannot save the desired state: %s", error)
            return events.SaveFailed(instruction.generation, str(error))
        return events.Saved(instruction.generation)

    async def _install(self, instruction: instructions.Install) -> None:
        task, run = instruction.task, instruction.run
        try:
            if task.packages:
                await self.packages.install(task.packages)
            if task.secrets:
                await self._secrets.values(task)
            answer: events.Event = events.PackagesInstalled(task.key, run)
        except Exception as error:  # noqa: BLE001 - the owner of the job receives every error
            answer = events.InstallFailed(task.key, run, _log_failed_start(task, error))
        self._installs.pop(task.key, None)
        self.handle(answer)

    async def _start(self, instruction: instructions.Start) -> None:
        task, run = instruction.task, instruction.run
        try:
            trees = self.packages.trees(task.packages)
            if task.secrets:
                await self.runtime.start(task, run=run, trees=trees, secrets=self._secrets.held(task))
            else:
                await self.runtime.start(task, run=run, trees=trees)
            answer: events.Event = events.Started(task.key, run)
        except Exception as error:  # noqa: BLE001 - the owner of the job receives every error
            answer = events.StartRefused(task.key, run, _log_failed_start(task, error))
        self.handle(answer)

    async def _terminate(self, instruction: instructions.Terminate) -> None:
        log.info(
            "sending SIGTERM to task %s, and SIGKILL after %g s: %s %s",
            instruction.key,
            instruction.notice_s,
            instruction.cause,
            instruction.detail,
        )
        try:
            await self.runtime.stop(
                instruction.key, notice_s=instruction.notice_s, cause=instruction.cause, detail=instruction.detail
            )
        except OSError as error:
            log.exception("cannot stop task %s; the Borglet tries again", instruction.key)
            self.handle(events.StopRefused(instruction.key, str(error)))

    async def _resize(self, instruction: instructions.Resize) -> None:
        try:
            await self.runtime.resize(instruction.task)
        except Exception:
            log.exception("cannot change the limits of task %s, which keeps its old ones", instruction.task.key)
        self._secrets.renew(instruction.task, self.runtime.secrets_of(instruction.task.key))

    async def _remove(self, instruction: instructions.Remove) -> None:
        self._secrets.forget(instruction.key)
        try:
            await self.runtime.remove(instruction.key)
        except OSError:
            log.exception("cannot remove the files of task %s", instruction.key)
        if self.state.allocs:  # the runtime may have removed the alloc of its last task
            self._report_allocs()

    async def _hold_allocs(self, instruction: instructions.HoldAllocs) -> None:
        self._allocs_due = None
        try:
            await self.runtime.hold_allocs(instruction.allocs, instruction.dropped)
        except (OSError, ValueError):
            log.exception("cannot create or remove the folders of allocs; the Borglet tries again in a few seconds")
            self._allocs_due = instruction
        self._report_allocs()

    def _report_allocs(self) -> None:
        allocs = tuple(self.runtime.allocs())
        if allocs != self.state.allocs:
            self.handle(events.AllocsHeld(allocs))

    async def _probe(self, instruction: instructions.Probe) -> None:
        address = self.runtime.addresses().get(instruction.key, "")
        answer = await self._prober.probe(instruction.check, instruction.port, address)
        self.handle(events.ProbeAnswered(instruction.key, instruction.run, answer.ok, answer.detail, answer.holds_s))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work_done)
        return task

    def _work_done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        assert error is not None
        assert self.failed is not None
        log.error("the Borglet cannot continue and ends", exc_info=error)
        if not self.failed.done():
            self.failed.set_exception(error)

    def _arm(self) -> None:
        """Set the timer to the time at which `AgentState` must act next. If `AgentState` need not act, set no timer."""
        at = self.state.next_wake()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at != math.inf:
            delay_s = max(0.0, at - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self.handle(events.TimePassed())


def _log_failed_start(task: RunTask, error: Exception) -> str:
    """Log why a task cannot start. Return a text with the reason, for the owner of its job."""
    if isinstance(error, (StartFailed, PackageMissing)):
        log.warning("cannot start task %s (%s): %s", task.name, task.key, error)
        return str(error)
    log.error("cannot start task %s (%s)", task.name, task.key, exc_info=error)
    return f"the machine could not start the task: {error}"
