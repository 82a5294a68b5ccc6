"""`borgctl ssh`: runs a shell or a command in a task, and connects this terminal to it.

    standard input   ── bytes ──► WebSocket ──► portal ──► … ──► the task's terminal
    standard output  ◄── output; each part is acknowledged after it is written ──┘

`borglet.messages` defines the frames of the WebSocket, and how many bytes may be sent before an acknowledgement.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from borglet.messages import (
    SHELL_FRAME_BYTES,
    SHELL_WINDOW_BYTES,
    MalformedMessage,
    ShellFrame,
    shell_cost,
    shell_frame,
    shell_frame_of,
)
from portal.cli import sockets
from portal.cli.context import Context, JobReference
from portal.cli.failure import CommandFailed
from portal.cli.paths import part

_ALIVE_S = 5.0
_SILENCE_S = 45.0  # the portal sends messages more often, so the connection is broken after this time
_LAST_OUTPUT_S = 10.0
_HEARD, _RESIZED = b".", b"r"


def run(session: Context, job: JobReference, index: int, command: list[str]) -> int:
    """Run `command` in a task, or a shell if `command` is empty. Return the exit status. Raises `CommandFailed` if the
    shell cannot be opened, or if the connection ends too early.
    """
    plain = not (sys.stdin.isatty() and sys.stdout.isatty())
    path = _path(job, index, command, plain)
    with sockets.dialled(session, path, what="shells", max_size=SHELL_FRAME_BYTES + 1, compression=None) as socket:
        return Terminal(socket, plain=plain).run()


def _path(job: JobReference, index: int, command: list[str], plain: bool) -> str:
    size = shutil.get_terminal_size()
    query: list[tuple[str, Any]] = [("rows", size.lines), ("cols", size.columns), ("plain", int(plain))]
    query += [("command", word) for word in command]
    path = f"/ws/shell/{part(job.cell)}/{part(job.tenant)}/{part(job.name)}/{index}/"
    return f"{path}?{urlencode(query, errors='surrogateescape')}"


class Terminal:
    """The connection between this terminal and the terminal of a task. `plain`: whether standard input or standard
    output of this process is a file or pipe instead of a terminal.
    """

    def __init__(self, socket: ClientConnection, *, plain: bool) -> None:
        self._socket, self._plain = socket, plain
        self._unconsumed = 0
        self._ended: tuple[ShellFrame, str] | None = None
        self._closed: ConnectionClosed | None = None
        self._lock = threading.Lock()
        self._woken, self._wake = os.pipe()

    def run(self) -> int:
        """Send the input to the task and print its output until the command ends. Return the exit status of the
        command. Raises `CommandFailed` if the connection ends before the command.
        """
        listener = threading.Thread(target=self._listen, daemon=True)
        listener.start()
        try:
            with self._raw(), self._following_size():
                self._type()
            listener.join(_LAST_OUTPUT_S)
        finally:
            self._socket.close()
            listener.join(5.0)
        return self._status()

    def _status(self) -> int:
        if self._ended is not None and self._ended[0] is ShellFrame.EXIT:
            kind, _, number = self._ended[1].partition(" ")
            return int(number) if kind == "status" else 128 + int(number)
        code = self._closed.rcvd.code if self._closed is not None and self._closed.rcvd is not None else 0
        reason = (
            self._ended[1]
            if self._ended is not None
            else f"the connection to the portal ended ({code}); open the shell again"
        )
        raise CommandFailed(sockets.CODES.get(code, "shell-ended"), reason)

    def _listen(self) -> None:
        try:
            while True:
                kind, payload = shell_frame_of(self._socket.recv(_SILENCE_S))
                if kind is ShellFrame.DATA:
                    _write_all(payload)
                    consumed = str(shell_cost(len(payload))).encode()
                    with contextlib.suppress(ConnectionClosed):  # the loop must still read the last output
                        self._socket.send(shell_frame(ShellFrame.CONSUMED, consumed))
                elif kind is ShellFrame.CONSUMED:
                    with self._lock:
                        self._unconsumed = max(0, self._unconsumed - int(payload or b"0"))
                elif kind in (ShellFrame.EXIT, ShellFrame.FAILED):
                    self._ended = (kind, payload.decode(errors="replace"))
                    self._socket.recv(5.0)  # the close code gives the reason
                os.write(self._wake, _HEARD)
        except ConnectionClosed as closed:
            self._closed = closed
        except TimeoutError:
            self._ended = self._ended or (
                ShellFrame.FAILED,
                f"the portal sent nothing for {_SILENCE_S:g} s; open the shell again",
            )
        except (MalformedMessage, ValueError, OSError) as error:
            self._ended = (ShellFrame.FAILED, f"{type(error).__name__}: {error}")
        finally:
            os.close(self._wake)

    def _type(self) -> None:
        sent_at, open_ = time.monotonic(), True
        with contextlib.suppress(ConnectionClosed):
            while True:
                with self._lock:
                    may_send = self._unconsumed < SHELL_WINDOW_BYTES
                watched = [self._woken, *([0] if open_ and may_send else [])]
                ready, _, _ = select.select(watched, [], [], _ALIVE_S)
                if self._woken in ready:
                    news = os.read(self._woken, 4096)
                    if not news:
                        return  # the listener has ended
                    if _RESIZED in news:
                        size = os.get_terminal_size(1)
                        rows_and_columns = f"{size.lines} {size.columns}".encode()
                        self._socket.send(shell_frame(ShellFrame.RESIZE, rows_and_columns))
                if 0 in ready:
                    data = os.read(0, SHELL_FRAME_BYTES)
                    open_ = bool(data)
                    with self._lock:
                        self._unconsumed += shell_cost(len(data)) if data else 0
                    self._socket.send(shell_frame(ShellFrame.DATA, data) if data else shell_frame(ShellFrame.END))
                if time.monotonic() - sent_at > _ALIVE_S:
                    sent_at = time.monotonic()
                    self._socket.send(shell_frame(ShellFrame.ALIVE))

    @contextlib.contextmanager
    def _raw(self) -> Iterator[None]:
        """Set this terminal to raw mode during the `with` block. All keys then go to the task, even Ctrl-C."""
        if self._plain:
            yield
            return
        before = termios.tcgetattr(0)
        try:
            tty.setraw(0)
            yield
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)

    @contextlib.contextmanager
    def _following_size(self) -> Iterator[None]:
        if self._plain:
            yield
            return

        def resized(*_: object) -> None:
            # This handler may have interrupted another send, so the main loop sends the size.
            with contextlib.suppress(OSError):
                os.write(self._wake, _RESIZED)

        before = signal.signal(signal.SIGWINCH, resized)
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)


def _write_all(data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]
