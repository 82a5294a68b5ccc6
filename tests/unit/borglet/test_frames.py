"""Tests of reading WebSocket frames: in pieces, several at once, and invalid ones."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame
from websockets.frames import Opcode as Known

from borglet.link.frames import BadFrame, FrameReader, Opcode, close_code, closing, frame

MOST = 1_000_000


def sent(opcode: Opcode, content: bytes, *, fin: bool = True) -> bytes:
    """Return a frame as a client's library encodes it."""
    return Frame(Known(opcode), content, fin).serialize(mask=True)


def read(reader: FrameReader, *pieces: bytes) -> list[tuple[Opcode, bytes]]:
    return [message for piece in pieces for message in reader.read(memoryview(piece))]


@given(
    contents=st.lists(st.integers(0, 70_000).map(lambda n: b"x" * n) | st.binary(max_size=300), max_size=5),
    cuts=st.lists(st.integers(0, 200_000), max_size=12),
)
def test_messages_arrive_whole_however_they_are_cut(contents: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(sent(Opcode.TEXT, content) for content in contents)
    at = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[begin:end] for begin, end in itertools.pairwise(at)]
    assert read(FrameReader(MOST), *pieces) == [(Opcode.TEXT, content) for content in contents]


def test_a_message_in_parts_is_put_together_around_a_ping() -> None:
    stream = [
        sent(Opcode.TEXT, b"one ", fin=False),
        sent(Opcode.PING, b"?"),
        sent(Opcode.CONTINUATION, b"two ", fin=False),
        sent(Opcode.CONTINUATION, b"three"),
    ]
    assert read(FrameReader(MOST), b"".join(stream)) == [(Opcode.PING, b"?"), (Opcode.TEXT, b"one two three")]


def test_nothing_of_what_arrived_is_kept() -> None:
    reader, shared = FrameReader(MOST), bytearray(sent(Opcode.TEXT, b"held"))
    first = reader.read(memoryview(shared)[:5])
    later = bytes(shared[5:])
    shared[:] = bytes(len(shared))
    assert first + reader.read(memoryview(later)) == [(Opcode.TEXT, b"held")]


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (frame(Opcode.TEXT, b"not masked"), 1002),
        (b"\xc1" + sent(Opcode.TEXT, b"x")[1:], 1002),
        (b"\x83" + sent(Opcode.TEXT, b"x")[1:], 1002),
        (sent(Opcode.CONTINUATION, b"of nothing"), 1002),
        (sent(Opcode.TEXT, b"a", fin=False) + sent(Opcode.TEXT, b"b"), 1002),
        (b"\x09" + sent(Opcode.PING, b"cut")[1:], 1002),
        (b"\x89\xfe\x00\x7e" + bytes(4 + 126), 1002),
        (sent(Opcode.TEXT, b"x" * (MOST + 1))[:20], 1009),
        (sent(Opcode.TEXT, b"x" * MOST, fin=False) + sent(Opcode.CONTINUATION, b"yy"), 1009),
    ],
    ids=range(9),  # masks are drawn again each time
)
def test_input_that_is_not_a_frame_is_reported_with_its_code(stream: bytes, code: int) -> None:
    with pytest.raises(BadFrame) as caught:
        read(FrameReader(MOST), stream)
    assert caught.value.code == code


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_what_is_written_is_a_frame_of_a_server(size: int) -> None:
    written = frame(Opcode.TEXT, b"x" * size)
    assert written == Frame(Known.TEXT, b"x" * size).serialize(mask=False)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_client_masks_and_a_server_does_not(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert read(FrameReader(MOST), frame(Opcode.TEXT, content, mask=b"abcd")) == [(Opcode.TEXT, content)]
    assert read(FrameReader(MOST, masked=False), frame(Opcode.TEXT, content)) == [(Opcode.TEXT, content)]
    with pytest.raises(BadFrame):
        read(FrameReader(MOST, masked=False), sent(Opcode.TEXT, content))


def test_a_close_has_a_code_and_a_reason_that_fits() -> None:
    written = closing(1008, "ü" * 100)
    assert len(written) <= 127
    assert Close.parse(written[2:]).code == 1008
    assert close_code(written[2:]) == 1008
    assert close_code(b"") == 1005


@pytest.mark.parametrize("content", [b"\x03", b"\x03\xed", b"\x00\x00"])
def test_no_other_code_closes(content: bytes) -> None:
    with pytest.raises(BadFrame):
        close_code(content)
