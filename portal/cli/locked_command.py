"""A command of a user that runs while `borgctl` holds a lock, and the signals that stop both."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from portal.cli.failure import CommandFailed

_STOP_S = 10.0
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class LockedCommand:
    """A command that runs in a shell, in a process group of its own, so that all its processes can be stopped.

    A terminal sends Ctrl-C only to the process group in its foreground. If this is the group of `borgctl`, the command
    stays in it. Then only the shell can be stopped without other programs of the user.
    """

    def __init__(self, command: str, variables: Mapping[str, str]) -> None:
        """Start the command. `variables`: environment variables beside those of this process.

        Raises `CommandFailed`.
        """
        self._grouped = not _in_foreground()
        group = 0 if self._grouped else None
        try:
            self._shell = subprocess.Popen(["sh", "-c", command], env=os.environ | variables, process_group=group)
        except OSError as error:
            raise CommandFailed("bad-usage", f"cannot start the command: {error.strerror}; shorten it") from error

    def status(self, *, within_s: float) -> int | None:
        """Return the status of the shell, or None if it does not end within `within_s` seconds."""
        try:
            return self._shell.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, *, by_itself: bool = False, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Send SIGTERM to the command, and SIGKILL to what is left of it after `_STOP_S` seconds. Return whether it is
        sure that no process of its group is left.

        `by_itself`: a terminal has sent Ctrl-C to the command too if it is in the foreground, so it may end by itself.
        `meanwhile`: called again and again during the wait.
        """
        if by_itself and not self._grouped and not self._wait(_STOP_S, meanwhile):
            return True
        self._signal(signal.SIGTERM)
        if self._wait(_STOP_S, meanwhile):
            self._signal(signal.SIGKILL)
        return not self._wait(1.0, meanwhile) and self._grouped

    def _wait(self, seconds: float, meanwhile: Callable[[], None]) -> bool:
        """Wait until no process of the command is left, at most `seconds`. Return whether one is left."""
        deadline = time.monotonic() + seconds
        while left := self._signal(0):
            if time.monotonic() > deadline:
                break
            meanwhile()
            time.sleep(0.05)
        return left

    def _signal(self, number: int) -> bool:
        """Send a signal to each process of the command that is left. Return whether there is one. 0: only look."""
        self._shell.poll()
        if not self._grouped:
            self._shell.send_signal(number)
            return self._shell.returncode is None
        try:
            os.killpg(self._shell.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # only processes of another user are left, for example of sudo
            return True
        return True


class Signalled(Exception):
    """This process got the signal `number`, which asks it to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Keeps the first signal that asks this process to end, during the `with` block. Ignored signals stay ignored."""

    def __init__(self) -> None:
        self._number = 0
        self._raises = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _STOPPING:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise `Signalled` in this block if a signal comes, or if one has come before."""
        self._raises = True
        try:
            if self._number:
                raise Signalled(self._number)
            yield
        finally:
            self._raises = False

    def _came(self, number: int, _: FrameType | None) -> None:
        self._number = self._number or number
        if self._raises:
            self._raises = False
            raise Signalled(self._number)


def _in_foreground() -> bool:
    """Return whether this process belongs to the process group in the foreground of its terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
