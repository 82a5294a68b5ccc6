"""Tests of checkpoint files: damaged ones are rejected with the name of the damaged section."""

from __future__ import annotations

import io
import struct

import pyarrow
import pytest

from scheduling.history.checkpoints.file import CheckpointError, Header, read, read_header, verify, write

HEADER = Header(cell="cc", revision=7, taken_at=5.0, history="h", extra_resources=("tpu",))
TABLES = {"machines": pyarrow.table({"id": list(range(100))}), "tasks": pyarrow.table({"id": list(range(1000))})}


def a_file() -> bytes:
    file = io.BytesIO()
    write(file, HEADER, TABLES)
    return file.getvalue()


def rejected(content: bytes) -> CheckpointError:
    """Read and verify a damaged checkpoint, check that both give the same error, and return it."""
    with pytest.raises(CheckpointError) as error:
        read(io.BytesIO(content))
    with pytest.raises(CheckpointError, match="Cannot read the checkpoint") as other:
        verify(io.BytesIO(content))
    assert str(other.value) == str(error.value)
    return error.value


def sections() -> dict[str, tuple[int, int]]:
    """Return by section name the position of its first byte, and the position after its last byte."""
    content = a_file()
    header = read_header(io.BytesIO(content))
    at, found = len(content) - header.bytes, {}
    for section in header.sections:
        found[section.name] = (at, at + section.bytes)
        at += section.bytes
    return found


def test_a_file_is_read_as_it_was_written() -> None:
    header, tables = read(io.BytesIO(a_file()))
    assert tables == TABLES
    assert (header.cell, header.revision, header.extra_resources) == ("cc", 7, ("tpu",))
    assert [(section.name, section.rows) for section in header.sections] == [("machines", 100), ("tasks", 1000)]


def test_every_truncated_file_is_rejected() -> None:
    content, places = a_file(), sections()
    for length in range(len(content)):
        error = rejected(content[:length])
        wanted = next((name for name, (begin, end) in places.items() if begin <= length < end), "header")
        assert error.section == wanted, length


def test_every_flipped_bit_is_rejected() -> None:
    content, places = a_file(), sections()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        error = rejected(bytes(changed))
        assert error.section == next((n for n, (begin, end) in places.items() if begin <= at < end), "header"), at


def test_a_file_of_a_later_format_is_rejected() -> None:
    content = bytearray(a_file())
    struct.pack_into("<I", content, 8, 2)
    error = rejected(bytes(content))
    assert error.section == "header"
    assert "format version 2" in str(error)
    assert "upgrade Borg Portal" in str(error)


def test_a_file_that_continues_is_rejected() -> None:
    assert rejected(a_file() + b"x").section == "tasks"
    assert rejected(b"").section == rejected(b"hello" * 100).section == "header"
