"""Run a program on a new terminal, for shells in tasks.

If a program instead of a person uses the shell (`plain`), a socket replaces the terminal, and every byte passes
unchanged.

`spawn` returns a `Pty`. When the Borglet ends, the kernel closes the terminal and kills the program. The program and
its child processes are in the task's control groups, and end when the task ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import fcntl
import marshal
import os
import pty
import signal
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass

from borglet.runtimes.supervisor import interpreters, proctable
from borglet.runtimes.supervisor.ptychild import ANSWER, ASK

START_TIMEOUT_S = 20.0
# The time between the hang-up and the kill.
GRACE_S = 0.5
MAX_REQUEST_BYTES = 2**20
_PIDFD_GETFD = 438  # the same on all architectures
# The child expects its own descriptors below this number.
_FIRST_FREE = 10


class ShellRefused(Exception):
    """The error if the Borglet cannot open a shell in a task. The message tells the user of the shell why."""


@dataclass(frozen=True, slots=True)
class PtyRequest:
    """A request to run a program on a pseudo-terminal. `user`: uid, gid and supplementary groups; None: the Borglet's
    user. `plain`: connect the program to a socket instead of a pseudo-terminal.
    """

    argv: list[str]
    environment: dict[str, str]
    directory: str
    groups: dict[str, str]
    user: tuple[int, int, list[int]] | None
    rows: int
    cols: int
    plain: bool = False
    engine: bool = False  # the program is a container engine, which enters the task's container
    tcp_ports: list[int] | None = None  # the ports that the program may bind; None: all


class Pty:
    """A terminal and the program that runs on it. Use this object from one asyncio loop. Call `close` at the end, also
    after an error.
    """

    def __init__(self, pid: int, pidfd: int, master: int, *, engine: bool = False) -> None:
        self._engine = engine
        self.pid, self._pidfd, self._master = pid, pidfd, master
        self._terminal = os.isatty(master)
        self._exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        os.set_blocking(master, False)
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit)

    async def read(self, size: int) -> bytes:
        """Return up to `size` bytes of output; empty if no process has the terminal open."""
        while True:
            if self._master < 0:
                return b""
            try:
                return os.read(self._master, size)
            except BlockingIOError:
                await self._ready(asyncio.get_running_loop().add_reader, asyncio.get_running_loop().remove_reader)
            except OSError:  # EIO: no process holds the terminal
                return b""

    async def write(self, data: bytes) -> None:
        """Write all of `data`, as fast as the program reads. If the terminal is closed before the end, the rest of the
        data is lost.
        """
        left = memoryview(data)
        while left and self._master >= 0:
            try:
                left = left[os.write(self._master, left) :]
            except BlockingIOError:
                await self._ready(asyncio.get_running_loop().add_writer, asyncio.get_running_loop().remove_writer)
            except OSError:
                return

    def end_of_input(self) -> None:
        """Close the program's input if the program is connected to a socket. Do nothing if the program has a
        terminal.
        """
        if self._master >= 0 and not self._terminal:
            with socket.socket(fileno=os.dup(self._master)) as ours, contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_WR)

    def resize(self, rows: int, cols: int) -> None:
        if self._master < 0 or not self._terminal:
            return
        size = struct.pack("HHHH", rows, cols, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        inner = _terminal_of_engine(self.pid, self._pidfd) if self._engine and not self._exited.done() else -1
        if inner >= 0:
            try:
                fcntl.ioctl(inner, termios.TIOCSWINSZ, size)
            finally:
                os.close(inner)

    async def exited(self) -> int:
        """Wait for the end of the program. Return its exit status, or the negative number of the signal that ended the
        program.
        """
        return await asyncio.shield(self._exited)

    async def close(self) -> int:
        """Close the terminal, and kill the program and all processes that it started. Return the exit status of the
        program.
        """
        others = _others_of_session(self.pid)
        if self._master >= 0:
            master, self._master = self._master, -1
            asyncio.get_running_loop().remove_reader(master)
            asyncio.get_running_loop().remove_writer(master)
            os.close(master)  # hangs up
        try:
            return await asyncio.wait_for(self.exited(), GRACE_S)
        except TimeoutError:
            return await self._kill()
        finally:
            for process in others:
                if proctable.still_runs(process.pid, process.started):
                    proctable.send_signal(process.pid, signal.SIGKILL)

    async def _kill(self) -> int:
        if not self._exited.done():
            proctable.send_signal(self.pid, signal.SIGKILL)
        return await self.exited()

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        _, status = os.waitpid(self.pid, 0)
        self._exited.set_result(os.waitstatus_to_exitcode(status))

    async def _ready(self, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
        master = self._master
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        add(master, _settle, ready)
        try:
            # A closed terminal never becomes ready, but then this task is cancelled.
            await ready
        finally:
            if self._master == master:
                remove(master)


async def spawn(request: PtyRequest) -> Pty:
    """Start the program, and return its terminal. Raises `ShellRefused` if the program does not start."""
    content = marshal.dumps(dataclasses.asdict(request))
    if len(content) > MAX_REQUEST_BYTES:
        raise ShellRefused(
            f"command and environment have {len(content)} bytes, and the limit is {MAX_REQUEST_BYTES}; give a shorter"
            " command"
        )
    descriptors: list[int] = []
    try:
        if request.plain:
            master, slave = (end.detach() for end in socket.socketpair())
        else:
            master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", request.rows, request.cols, 0, 0))
        descriptors += [master, slave]
        ask_reader, ask = os.pipe()
        descriptors += [ask_reader, ask]
        answer, answer_writer = os.pipe()
        descriptors += [answer, answer_writer]
        fcntl.fcntl(ask, fcntl.F_SETPIPE_SZ, MAX_REQUEST_BYTES)
        given = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for number in (ask_reader, answer_writer)]
        descriptors += given
        actions = [(os.POSIX_SPAWN_DUP2, slave, number) for number in (0, 1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, *pair) for pair in zip(given, (ASK, ANSWER), strict=True)]
        pid = interpreters.spawn("ptychild", "borg-shell", file_actions=actions)
        pidfd = os.pidfd_open(pid)
        started = Pty(pid, pidfd, master, engine=request.engine)
        descriptors.remove(master)
        os.write(ask, content)
        for number in (slave, ask_reader, ask, answer_writer, *given):
            os.close(number)
            descriptors.remove(number)
        try:
            reason = await interpreters.read_answer(answer, START_TIMEOUT_S)
        except TimeoutError:
            reason = f"the shell did not start within {START_TIMEOUT_S:g} s; try again"
        except BaseException:
            await started.close()
            raise
        if reason:
            await started.close()
            raise ShellRefused(reason)
        return started
    except OSError as error:
        raise ShellRefused(
            f"the machine cannot open a terminal: {error.strerror}; try again, or ask an SRE to check the machine"
        ) from error
    finally:
        for number in descriptors:
            os.close(number)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _terminal_of_engine(pid: int, pidfd: int) -> int:
    """Return a file descriptor of the terminal that the container engine opened in its container, or -1 if there is
    none. The Borglet sets the size of this terminal, because crun 1.8 does not.
    """
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{name}").endswith("/ptmx"):
                return int(ctypes.CDLL(None).syscall(_PIDFD_GETFD, pidfd, int(name), 0))
    except OSError:
        return -1  # the engine has just ended
    return -1


def _others_of_session(leader: int) -> list[proctable.Process]:
    """Return all processes of the leader's session and all descendants of the leader, without the leader itself.
    `leader`: its pid.
    """
    table = proctable.table()
    below = set(proctable.descendants(proctable.children_of(table), leader))
    return [
        process
        for process in table.values()
        if process.pid != leader and (process.pid in below or _session_of(process.pid) == leader)
    ]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1
