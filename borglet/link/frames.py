"""Read and write WebSocket frames (RFC 6455, §5), for both ends of the link. A Borglet masks its frames, a shard does
not. Pure.

This module does little work per frame, because shards and fleets read thousands of frames per second.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum

try:
    from websockets.speedups import apply_mask
except ImportError:  # the compiled module is optional
    from websockets.utils import apply_mask

PROTOCOL_ERROR, INVALID_DATA, POLICY_VIOLATION, TOO_BIG = 1002, 1007, 1008, 1009
NO_STATUS = 1005
_SHORT, _LONG = 126, 127
_LONGEST_CONTROL = 125
_LONGEST_REASON = 123
_PART_BYTES = 64  # the memory that even an empty part takes


class Opcode(IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


_KNOWN = {int(opcode): opcode for opcode in Opcode}  # faster than `Opcode(number)`


class BadFrame(Exception):
    """The error for a frame that violates the protocol. `code`: the status code of the close frame to answer with."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(slots=True)
class FrameReader:
    """A reader that receives bytes in pieces of any size and returns whole messages. `most_bytes`: the largest size of
    one message. `masked`: the frames come from a client.
    """

    most_bytes: int
    masked: bool = True
    _left: bytearray | None = None  # the beginning of a frame that is not complete
    _wanted: int = 0  # the size of that frame in bytes, 0 while it is unknown
    _parts: list[bytes] = field(default_factory=list)  # the parts of a message in several frames
    _parts_bytes: int = 0  # the memory that these parts take

    def read(self, arrived: memoryview) -> list[tuple[Opcode, bytes]]:
        """Return the messages and control frames that are now complete, in order. Each is a pair of opcode (never
        `CONTINUATION`) and content.

        `arrived`: received bytes. The caller may reuse this buffer. Raises `BadFrame` if a frame breaks the WebSocket
        protocol.
        """
        data = arrived
        if self._left is not None:
            self._left += arrived
            if len(self._left) < self._wanted:
                return []
            data = memoryview(bytes(self._left))
        found: list[tuple[Opcode, bytes]] = []
        at = 0
        while (end := self._frame(data, at, found)) > at:
            at = end
        left = len(data) - at
        if not left:
            self._left = None
        elif self._left is None:
            self._left = bytearray(data[at:])
        else:
            del self._left[:at]
        return found

    def _frame(self, data: memoryview, at: int, found: list[tuple[Opcode, bytes]]) -> int:
        """Read the frame that starts at position `at` of `data`. If it completes a message, append the message to
        `found`. Return the position of the frame's end, or `at` if the frame is not complete.
        """
        size = len(data) - at
        self._wanted = 0
        if size < 2:
            return at
        first, second = data[at], data[at + 1]
        opcode = _KNOWN.get(first & 0x0F)
        if first & 0x70 or opcode is None:
            raise BadFrame(
                PROTOCOL_ERROR, "a WebSocket frame has reserved bits or an unknown opcode; see RFC 6455, section 5.2"
            )
        if bool(second & 0x80) is not self.masked:
            raise BadFrame(
                PROTOCOL_ERROR,
                "a WebSocket frame of a client has no mask, or one of a server has a mask; see RFC 6455, section 5.1",
            )
        mask = 4 if self.masked else 0
        length, head = second & 0x7F, 2 + mask
        if length == _SHORT:
            head = 4 + mask
            if size < head:
                return at
            (length,) = struct.unpack_from("!H", data, at + 2)
        elif length == _LONG:
            head = 10 + mask
            if size < head:
                return at
            (length,) = struct.unpack_from("!Q", data, at + 2)
        if length > self.most_bytes:
            raise BadFrame(
                TOO_BIG, f"the message has more than {self.most_bytes} bytes, which is the limit; send a shorter one"
            )
        begin = at + head
        if size < head + length:
            self._wanted = head + length
            return at
        content = bytes(data[begin : begin + length])
        if self.masked:
            content = apply_mask(content, bytes(data[begin - 4 : begin]))
        self._take(opcode, bool(first & 0x80), content, found)
        return begin + length

    def _take(self, opcode: Opcode, final: bool, content: bytes, found: list[tuple[Opcode, bytes]]) -> None:
        if opcode >= Opcode.CLOSE:
            if not final or len(content) > _LONGEST_CONTROL:
                raise BadFrame(
                    PROTOCOL_ERROR,
                    f"a WebSocket control frame must not be fragmented and may have at most {_LONGEST_CONTROL} bytes;"
                    " see RFC 6455, section 5.5",
                )
            found.append((opcode, content))
        elif opcode is not Opcode.CONTINUATION:
            if self._parts:
                raise BadFrame(
                    PROTOCOL_ERROR,
                    "a WebSocket message begins before the previous one has ended; see RFC 6455, section 5.4",
                )
            if final:
                found.append((opcode, content))
            else:
                self._parts, self._parts_bytes = [bytes((opcode,)), content], len(content)
        else:
            if not self._parts:
                raise BadFrame(
                    PROTOCOL_ERROR,
                    "a WebSocket continuation frame came before the first frame of a message; see RFC 6455, section"
                    " 5.4",
                )
            self._parts.append(content)
            self._parts_bytes += len(content) + _PART_BYTES
            if self._parts_bytes > self.most_bytes:
                raise BadFrame(
                    TOO_BIG,
                    f"the message has more than {self.most_bytes} bytes, which is the limit; send a shorter one",
                )
            if final:
                begun, self._parts = self._parts, []
                found.append((Opcode(begun[0][0]), b"".join(begun[1:])))


def frame(opcode: Opcode, content: bytes, *, mask: bytes = b"") -> bytes:
    """Return a whole frame. `mask`: four random bytes in a frame of a client, empty in a frame of a server."""
    first, length, masked = 0x80 | opcode, len(content), 0x80 if mask else 0
    if length < _SHORT:
        head = bytes((first, masked | length))
    elif length < 2**16:
        head = struct.pack("!BBH", first, masked | _SHORT, length)
    else:
        head = struct.pack("!BBQ", first, masked | _LONG, length)
    return head + mask + apply_mask(content, mask) if mask else head + content


def closing(code: int, reason: str, *, mask: bytes = b"") -> bytes:
    """Return a close frame. A reason of more than 123 bytes is cut."""
    detail = reason.encode()[:_LONGEST_REASON].decode(errors="ignore").encode()
    return frame(Opcode.CLOSE, struct.pack("!H", code) + detail, mask=mask)


def close_code(content: bytes) -> int:
    """Return the status code of a close frame. `content`: the content of the frame. Return `NO_STATUS` if `content` is
    empty. Raises `BadFrame` if the code is incomplete or not valid.
    """
    if not content:
        return NO_STATUS
    if len(content) < 2:
        raise BadFrame(
            PROTOCOL_ERROR,
            "a WebSocket close frame must be empty or begin with a status code; see RFC 6455, section 5.5.1",
        )
    (code,) = struct.unpack_from("!H", content)
    if not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        raise BadFrame(
            PROTOCOL_ERROR, f"{code} is not a valid status code of a WebSocket close frame; see RFC 6455, section 7.4"
        )
    return int(code)
