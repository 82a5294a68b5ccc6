"""Writing, reading and forgetting rotated logs; tricks with links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from borglet.messages import LogChunk, LogRequest, TaskKey
from borglet.runtimes.logfiles import LogRetention, read_log, sweep_logs
from borglet.runtimes.logwriter import LogWriter, file_name
from tests.unit.borglet_runtime.machine import key

NAME = f"{key().job}.0.1"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    directory = tmp_path / "logs" / NAME
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def descriptor(logs: Path) -> Iterator[int]:
    descriptor = os.open(logs, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def write(descriptor: int, *parts: bytes, file_bytes: int = 10, keep: int = 3) -> LogWriter:
    writer = LogWriter(descriptor, "stdout", file_bytes=file_bytes, keep=keep)
    for part in parts:
        writer.write(part)
    writer.close()
    return writer


def read(logs: Path, offset: int, limit: int = 100, **changes: object) -> LogChunk:
    fields = {"key": key(), "stream": "stdout", "offset": offset, "limit_bytes": limit} | changes
    return read_log(logs.parents[1], LogRequest("r", **fields))  # type: ignore[arg-type]


def test_offsets_are_those_of_the_first_start_over_rotation_and_restart(logs: Path, descriptor: int) -> None:
    write(descriptor, b"aaaaa", b"bbbbb", b"ccccc")
    write(descriptor, b"ddddd", b"eeeee", b"fffff", b"ggggg", b"hhhhh")  # a new run goes on
    assert sorted(os.listdir(logs)) == [file_name("stdout", n) for n in (10, 20, 30)]
    assert read(logs, 0) == LogChunk("r", 10, 40, "cccccdddddeeeeefffffggggghhhhh")
    assert read(logs, 18, 5) == LogChunk("r", 18, 23, "ddeee")
    assert read(logs, -3) == LogChunk("r", 37, 40, "hhh")
    assert read(logs, 40) == LogChunk("r", 40, 40, "")
    assert read(logs, 99) == LogChunk("r", 40, 40, "")
    assert read(logs, 0, stream="stderr") == LogChunk("r", 0, 0, "")


def test_a_character_cut_in_two_waits_for_its_rest(logs: Path, descriptor: int) -> None:
    write(descriptor, "aé€".encode(), file_bytes=100)
    assert read(logs, 0, 2) == LogChunk("r", 0, 1, "a")
    assert read(logs, 1, 4) == LogChunk("r", 1, 3, "é")
    assert read(logs, 3) == LogChunk("r", 3, 6, "€")
    assert read(logs, 3, 1) == LogChunk("r", 3, 4, "\ufffd")  # asked for less than one: still goes on


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"stream": "../x"}, "stream: no '../x'; ask for stdout or stderr"),
        ({"limit_bytes": 0}, "limit_bytes: 0 is too small"),
        ({"key": TaskKey("../../etc", 0, 1)}, "key: '../../etc/0/1' is no task key"),
        ({"key": TaskKey("cd" * 16, 0, 1)}, "no logs of task"),
    ],
)
def test_a_bad_request_is_told_so(logs: Path, change: dict[str, object], error: str) -> None:
    assert error in read(logs, 0, **change).error


@pytest.mark.parametrize("trick", ["symbolic link", "hard link", "fifo", "linked directory"])
def test_planted_files_are_not_read(logs: Path, tmp_path: Path, trick: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    planted = logs / file_name("stdout", 0)
    if trick == "symbolic link":
        planted.symlink_to(secret)
    elif trick == "hard link":
        planted.hardlink_to(secret)
    elif trick == "fifo":
        os.mkfifo(planted)
    else:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / planted.name).write_text("secret")
        logs.rmdir()
        logs.symlink_to(elsewhere)
    assert read(logs, 0).text == ""


def test_planted_links_are_not_written_through_and_nothing_blocks(logs: Path, descriptor: int) -> None:
    victim = logs.parent / "victim"
    victim.write_text("")
    (logs / file_name("stdout", 0)).symlink_to(victim)
    writer = write(descriptor, b"lost")
    assert victim.read_text() == ""
    assert writer.dropped == 4


def test_sweep_forgets_by_age_then_by_size_and_never_the_present(tmp_path: Path) -> None:
    for name, age in (("old", 100), ("big", 50), ("new", 10), ("running", 1000)):
        directory = tmp_path / "logs" / name
        directory.mkdir(parents=True)
        (directory / "stdout.0").write_bytes(b"x" * 600)
        os.utime(directory, (1000 - age, 1000 - age))
    retention = LogRetention(keep_s=80, budget_bytes=1000)
    deleted = sweep_logs(tmp_path, now=1000, present={"running"}, retention=retention)
    assert deleted == ["old", "big"]
    assert sorted(os.listdir(tmp_path / "logs")) == ["new", "running"]
