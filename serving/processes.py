"""Several processes on one port. A parent process forks workers, and replaces each worker that ends.

    parent ── fork ─► worker 0
                 └──► worker 1 …
    worker ends ─► the parent starts it again after 0.1 s, 0.2 s … 5 s
    worker ends too often in a row ─► the parent ends with status 1

The kernel distributes requests over all sockets on the port (SO_REUSEPORT), so a worker opens its socket only when it
can answer. The parent has no open connections and only one thread. So a forked worker inherits no connection, and no
lock that another thread holds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import structlog

log = structlog.get_logger(__name__)

STOP_S = 4.0  # time for workers to end before SIGKILL; systemd waits 5 s
FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 5.0
SETTLED_S = 10.0  # after a run of this time, a worker restarts with the shortest delay
MOST_ENDS = 8  # of one worker in a row
_WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process. `of`: the number of workers. `number`: the number of this worker, starting at 0. `again`:
    whether this worker replaces a worker that has ended.
    """

    number: int = 0
    of: int = 1
    again: bool = False

    @property
    def first(self) -> bool:
        """Return whether this is the first worker. The first worker also does the work that only one worker may do."""
        return self.number == 0

    @property
    def waits(self) -> bool:
        """Return whether this worker must wait with its socket until it can answer requests. Until then, other workers
        answer.
        """
        return self.again or not self.first


@dataclass(slots=True)
class _Place:
    """The data that the parent process stores about one worker. `due`: when the worker is started next, in seconds of
    the monotonic clock.
    """

    number: int
    pid: int = 0
    began: float = 0.0
    due: float = 0.0
    ends: int = 0  # in a row
    starts: int = 0


class Parent:
    """Starts `processes` worker processes, and restarts workers that end.

    `work`: a function that runs in each worker and returns the exit status. `on_end`: a function that the parent calls
    when a worker has ended, with the number of the worker, before the worker is restarted.
    """

    def __init__(
        self,
        processes: int,
        work: Callable[[Worker], int],
        *,
        on_end: Callable[[int], None] = lambda _: None,
        most_ends: int = MOST_ENDS,
    ) -> None:
        self._work = work
        self._most_ends = most_ends
        self._on_end = on_end
        self._places = [_Place(number) for number in range(processes)]

    def run(self) -> int:
        """Run the workers until SIGTERM or SIGINT arrives, then return 0. Return 1 if a worker ends too often.

        The process must have only one thread.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        try:
            while True:
                now = time.monotonic()
                for place in self._places:
                    if not place.pid and place.due <= now:
                        self._start(place, before)  # type: ignore[arg-type]
                waits = [place.due - now for place in self._places if not place.pid]
                received = signal.sigtimedwait(_WATCHED, max(0.0, min(waits, default=60.0)))
                if received is not None and received.si_signo != signal.SIGCHLD:
                    return 0
                for place, status in self._ended():
                    if not self._plan(place, status):
                        return 1
        finally:
            self._stop()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start(self, place: _Place, mask: set[signal.Signals]) -> None:
        worker = Worker(place.number, len(self._places), again=place.starts > 0)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                if os.getppid() == parent:  # otherwise the parent ended before the call above
                    status = self._work(worker)
            except BaseException:  # otherwise the worker would continue as a second parent
                log.exception("worker failed", worker=worker.number)
            finally:
                os._exit(status)
        place.pid, place.began = pid, time.monotonic()
        place.starts += 1
        log.info("worker started", worker=place.number, pid=pid)

    def _ended(self) -> Iterator[tuple[_Place, int]]:
        for place in self._places:
            if place.pid:
                pid, status = os.waitpid(place.pid, os.WNOHANG)
                if pid:
                    place.pid = 0
                    yield place, os.waitstatus_to_exitcode(status)

    def _plan(self, place: _Place, status: int) -> bool:
        """Set the time at which an ended worker starts again. Return False if the worker has ended too often."""
        now = time.monotonic()
        place.ends = 1 if now - place.began >= SETTLED_S else place.ends + 1
        if place.ends > self._most_ends:
            log.error("worker ended too often; stopping all workers", worker=place.number, status=status)
            return False
        delay_s = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (place.ends - 1))
        place.due = now + delay_s
        self._on_end(place.number)
        log.warning("worker ended", worker=place.number, status=status, again_in_s=delay_s)
        return True

    def _stop(self) -> None:
        """Stop all workers with SIGTERM. Workers that have not ended after `STOP_S` seconds get SIGKILL."""
        deadline = time.monotonic() + STOP_S
        self._signal_all(signal.SIGTERM)
        while any(place.pid for place in self._places):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                log.warning("workers did not end in time; killing them")
                self._signal_all(signal.SIGKILL)
            # This call returns at once for earlier signals that are still pending.
            signal.sigtimedwait({signal.SIGCHLD}, max(0.05, min(left_s, 1.0)))
            for place, status in self._ended():
                log.info("worker stopped", worker=place.number, status=status)

    def _signal_all(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.pid:
                with suppress(ProcessLookupError):
                    os.kill(place.pid, number)
