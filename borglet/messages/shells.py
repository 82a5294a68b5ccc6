"""Shells in tasks: their grants, and the frames of a shell's own WebSocket."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from borglet.messages.desired import TaskKey
from borglet.messages.refusals import MalformedMessage


class ShellClaims(msgspec.Struct, frozen=True):
    """The content of a signed grant: one shell in one incarnation of a task on one machine, for one request."""

    session: str  # 32 hex digits; a second grant of the same session is rejected
    machine: str  # hostname
    key: TaskKey
    user: str
    issued_at: float  # seconds since the epoch, the shard's clock
    expires_at: float  # the machine must have dialled by then
    idle_s: float  # ends after so long without input and output
    longest_s: float  # ends after so long whatever happens
    command: list[str] = []  # empty: a login shell
    rows: int = 24
    cols: int = 80
    plain: bool = False  # no terminal, because the client is a program
    term: str = "xterm-256color"


class ShellGrant(msgspec.Struct, frozen=True):
    """`claims`: JSON of `ShellClaims`. `signature`: ECDSA with SHA-256 by the cell's authority over
    `SHELL_CONTEXT` and `claims`, so that it cannot be mistaken for anything else that the authority signs."""

    claims: bytes
    signature: bytes


SHELL_CONTEXT = b"borg shell grant 1\n"
# A shell's own WebSocket (`/shell?session=…`) carries binary frames: one byte of kind, then its payload.
# Each side sends at most this many bytes that the other has not confirmed as consumed. So no buffer between them ever
# holds more, with any speed of task and browser.
SHELL_WINDOW_BYTES = 256 * 1024
SHELL_FRAME_BYTES = 16 * 1024
# A frame counts as at least this much, so that the number of frames on their way is bounded too.
SHELL_LEAST_COST = 512


class ShellFrame(StrEnum):
    """Kinds of frames. `client` is the browser or borgctl."""

    DATA = "d"  # both ways: typed input, printed output
    CONSUMED = "a"  # both ways: consumed bytes of the window, decimal
    RESIZE = "r"  # from the client: "<rows> <cols>"
    END = "e"  # from a plain client: the end of input
    ALIVE = "p"  # both ways, every few seconds
    OPENED = "o"  # from the task: the shell runs
    EXIT = "x"  # from the task, the last: "status <n>" | "signal <n>"
    FAILED = "f"  # both ways, the last: why the shell cannot open, or has ended


def shell_frame(kind: ShellFrame, payload: bytes = b"") -> bytes:
    return kind.value.encode() + payload


def shell_frame_of(frame: bytes | str) -> tuple[ShellFrame, bytes]:
    """Decode a frame. Raises `MalformedMessage`."""
    raw = frame.encode() if isinstance(frame, str) else frame
    try:
        return ShellFrame(raw[:1].decode("ascii")), raw[1:]
    except ValueError as error:
        raise MalformedMessage(f"a frame of a shell cannot begin with {raw[:1]!r}") from error


def shell_cost(size: int) -> int:
    """Return how much of the window a frame with `size` bytes of data takes."""
    return max(size, SHELL_LEAST_COST)
