"""Shells in tasks: the grants, and the frames of a shell's WebSocket."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from borglet.messages.desired import TaskKey
from borglet.messages.refusals import MalformedMessage


class ShellClaims(msgspec.Struct, frozen=True):
    """The content of a signed grant. The grant permits one shell in one incarnation of a task, once."""

    session: str  # 32 hex digits; a second grant of the same session is rejected
    machine: str  # host name
    key: TaskKey
    user: str
    issued_at: float  # seconds since the epoch by the shard's clock
    expires_at: float  # the grant cannot be used later
    idle_s: float  # the shell ends after this long without input and output
    longest_s: float  # the longest duration of the shell
    command: list[str] = []  # empty: a login shell
    rows: int = 24
    cols: int = 80
    plain: bool = False  # True: no terminal, because the client is a program
    term: str = "xterm-256color"


class ShellGrant(msgspec.Struct, frozen=True):
    """A signed permission to open one shell in a task. `claims`: `ShellClaims` as JSON. `signature`: a signature (ECDSA
    with SHA-256) that the cell's authority made of `SHELL_CONTEXT` followed by `claims`.
    """

    claims: bytes
    signature: bytes


# The signed prefix of each grant. Without it, another text that the authority signs could be used as a grant.
SHELL_CONTEXT = b"borg shell grant 1\n"
# A shell's own WebSocket (`/shell?session=…`) carries binary frames: one byte for the kind, then the payload.
# Each side may send this many bytes before the other side confirms that it has consumed them. This limits all buffers.
SHELL_WINDOW_BYTES = 256 * 1024
SHELL_FRAME_BYTES = 16 * 1024
# Each frame costs at least this many bytes of the window, which limits the number of frames, too.
SHELL_LEAST_COST = 512


class ShellFrame(StrEnum):
    """The kinds of frames between a client and the shell of a task. The client is a browser or borgctl."""

    DATA = "d"  # both directions: typed input, printed output
    CONSUMED = "a"  # both directions: number of consumed bytes of the window, decimal
    RESIZE = "r"  # from the client: "<rows> <cols>"
    END = "e"  # from a plain client: the end of input
    ALIVE = "p"  # both directions, every few seconds
    OPENED = "o"  # from the task: the shell runs
    EXIT = "x"  # from the task, the last frame: "status <n>" | "signal <n>"
    FAILED = "f"  # both directions, the last frame: the reason why the shell cannot open, or has ended


def shell_frame(kind: ShellFrame, payload: bytes = b"") -> bytes:
    return kind.value.encode() + payload


def shell_frame_of(frame: bytes | str) -> tuple[ShellFrame, bytes]:
    """Return kind and payload of a frame. Raises `MalformedMessage` if the kind is unknown."""
    raw = frame.encode() if isinstance(frame, str) else frame
    try:
        return ShellFrame(raw[:1].decode("ascii")), raw[1:]
    except ValueError as error:
        raise MalformedMessage(
            f"a frame of a shell begins with {raw[:1]!r}, which is not a known kind of frame; use the same release of"
            " client and cell"
        ) from error


def shell_cost(size: int) -> int:
    """Return how many bytes of the flow-control window a frame with `size` bytes of data uses."""
    return max(size, SHELL_LEAST_COST)
