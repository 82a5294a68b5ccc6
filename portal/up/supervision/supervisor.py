"""The supervisor of all processes of one host. It starts a process once the processes that it needs are up. It stops a
process before it stops the processes that it needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from portal.up.supervision import children
from portal.up.supervision.logfiles import LogFile
from portal.up.supervision.process_keeper import ProcessKeeper, Spec, end_of, spawn, wait_for_either
from portal.up.supervision.time_limits import AT_LEAST_S, LEAST_SHARE, MORE_TIMES

log = logging.getLogger("portal.up")

_ROTATE_EVERY_S = 10.0


class SupervisorError(RuntimeError):
    """The error if a process cannot run. The message contains its name, its log file and the end of its log."""


class ProcessSupervisor:
    """A supervisor that starts a set of processes and keeps them running.

    Use it in the main thread, because child processes end with the thread that started them. `broken`: a future. If the
    supervision of a process fails, the future gets the error.
    """

    def __init__(self, *, run_folder: Path, log_folder: Path) -> None:
        self.run_folder = run_folder
        self.log_folder = log_folder
        self.keepers: dict[str, ProcessKeeper] = {}
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rotation: asyncio.Task[None] | None = None

    def start(self, specs: Iterable[Spec]) -> None:
        """Add processes and start them. A process may need processes of the same call or of earlier calls.

        Raises `SupervisorError` if a process needs an unknown process, or if processes need each other in a circle.
        """
        for spec in in_order(specs, known=self.keepers):
            needs = [self.keepers[name] for name in spec.needs]
            keeper = ProcessKeeper(spec, record=self.record(spec.name), logfile=self.logfile(spec.name), needs=needs)
            self.keepers[spec.name] = keeper
            keeper.start(self._break)
        if self._rotation is None:
            self._rotation = asyncio.create_task(self._rotate(), name="rotate logs")

    async def wait_up(self, timeout_s: float) -> None:
        """Wait until every process is up, but at most `timeout_s` seconds, or longer while the late processes make
        progress.

        If a process is still not up, raises `SupervisorError` with its name, the reason, and the end of its log.
        """
        began, late = time.monotonic(), self._late()
        longest_s = max(MORE_TIMES * timeout_s, AT_LEAST_S)
        waits = [asyncio.ensure_future(keeper.up.wait()) for keeper in self.keepers.values()]
        try:
            while (await asyncio.wait(waits, timeout=timeout_s))[1]:
                took_s, before, late = time.monotonic() - began, late, self._late()
                if took_s >= longest_s or not _makes_progress(before, late, timeout_s):
                    raise SupervisorError(self._complaint(took_s))
        finally:
            for wait in waits:
                wait.cancel()

    async def stop(self, names: Sequence[str] | None = None) -> None:
        """Stop the processes `names`, or all processes if `names` is None. A process stops before the processes that it
        needs.
        """
        left = {name: keeper for name, keeper in self.keepers.items() if names is None or name in names}
        while left:
            needed = {need for keeper in left.values() for need in keeper.spec.needs}
            free = [keeper for name, keeper in left.items() if name not in needed]
            await asyncio.gather(*(keeper.stop() for keeper in free))
            for keeper in free:
                del left[keeper.spec.name]
        if names is None and self.broken.done():
            self.broken.exception()  # mark the error as read, because asyncio logs unread errors
        if names is None and self._rotation is not None:
            self._rotation.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._rotation

    def hurry(self) -> None:
        """Kill all processes that are stopping now. From now on, kill each process at once when it must stop."""
        for keeper in self.keepers.values():
            keeper.hurry()

    def logfile(self, name: str) -> LogFile:
        return LogFile(self.log_folder / f"{name}.log")

    def record(self, name: str) -> Path:
        return self.run_folder / f"{name}.pid"

    async def run_once(self, spec: Spec, *, until: asyncio.Event | None = None) -> bool:
        """Run a process to its end and return True. If `until` is set before the end, kill the process and return
        False.

        Raises `SupervisorError` if the process fails or takes longer than `spec.start_s` seconds.
        """
        until = until or asyncio.Event()
        logfile = self.logfile(spec.name)
        process = spawn(spec, logfile, self.record(spec.name))
        try:
            ended = end_of(process)
            await wait_for_either(ended, until, spec.start_s)
            in_time = ended.done()
            ended.cancel()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(10.0)
            self.record(spec.name).unlink(missing_ok=True)
        if until.is_set() and not in_time:
            return False
        if not in_time or process.returncode != 0:
            status, most_s = process.returncode, f"{spec.start_s:.0f} s"
            problem = (
                f"{spec.name} failed with status {status}" if in_time else f"{spec.name} did not end within {most_s}"
            )
            raise SupervisorError(f"{problem}. The end of its log {logfile.path}:\n{logfile.tail(15)}")
        return True

    def _break(self, error: BaseException) -> None:
        """Store an error of the supervisor itself in the future `broken`, so that the program that waits for this
        future stops all processes.
        """
        if not self.broken.done():
            self.broken.set_exception(error)

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(_ROTATE_EVERY_S)
            for keeper in self.keepers.values():
                try:
                    keeper.logfile.rotate()
                except OSError as error:
                    log.warning("The log of %s cannot be rotated: %s", keeper.spec.name, error)

    def _late(self) -> dict[str, tuple[int, float]]:
        """Return, for each process that is not up, how often it was restarted, and its CPU seconds since the last
        start.
        """
        return {
            name: (keeper.restarts.total, keeper.work().cpu_s)
            for name, keeper in self.keepers.items()
            if not keeper.up.is_set()
        }

    def _complaint(self, timeout_s: float) -> str:
        late = [keeper for keeper in self.keepers.values() if not keeper.up.is_set()]
        culprit = next((keeper for keeper in late if all(n.up.is_set() for n in keeper.needs)), late[0])
        others = ", ".join(keeper.spec.name for keeper in late if keeper is not culprit)
        return (
            f"{culprit.spec.name} is not up after {timeout_s:.0f} s: {culprit.why}"
            + (f" (nor are: {others})" if others else "")
            + f"; the end of {culprit.logfile.path}:\n{culprit.logfile.tail(15)}"
        )


def _makes_progress(
    before: Mapping[str, tuple[int, float]], late: Mapping[str, tuple[int, float]], over_s: float
) -> bool:
    """Return whether the start of the processes made progress: a process came up, or a process that is not up used CPU
    and was not restarted.

    `late`: for each process that is not up now, how often it was restarted, and its CPU seconds. `before`: the same,
    `over_s` seconds ago.
    """
    works = (
        late[name][1] - cpu_s >= LEAST_SHARE * over_s
        for name, (restarts, cpu_s) in before.items()
        if name in late and late[name][0] == restarts
    )
    return len(late) < len(before) or any(works)


def in_order(specs: Iterable[Spec], *, known: Iterable[str] = ()) -> list[Spec]:
    """Sort the processes so that each one comes after the processes that it needs. `known`: the names of processes that
    already exist.

    Raises `SupervisorError` if a process needs an unknown process, or if processes need each other in a circle.
    """
    left, met, ordered = list(specs), set(known), []
    while left:
        free = [spec for spec in left if met.issuperset(spec.needs)]
        if not free:
            story = "; ".join(f"{spec.name} needs {', '.join(spec.needs)}" for spec in left)
            raise SupervisorError(
                f"Cannot start processes that need each other or an unknown process: {story}. Report this as a bug."
            )
        ordered += free
        met.update(spec.name for spec in free)
        left = [spec for spec in left if spec not in free]
    return ordered


def stop_leftovers(run_folder: Path, *, timeout_s: float = 20.0) -> list[str]:
    """Stop the processes that still run after an earlier supervisor has ended. Return their names.

    PostgreSQL and Redis are stopped last, because the other processes use them. PostgreSQL gets SIGINT, its fast
    shutdown.
    """
    found = []
    for record in sorted(run_folder.glob("*.pid"), key=lambda path: path.stem in ("postgres", "redis")):
        pid = children.record_find(record)
        if pid is not None:
            first = signal.SIGINT if record.stem == "postgres" else signal.SIGTERM
            children.end_process(pid, first, timeout_s)
            found.append(record.stem)
        record.unlink(missing_ok=True)
    return found
