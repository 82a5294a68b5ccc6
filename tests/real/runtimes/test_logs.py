"""Tests of task logs: writing, rotation, reading, search, deletion, and links that a task plants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from borglet.messages import LogChunk, LogRequest, TaskKey
from borglet.runtimes.home import logfiles
from borglet.runtimes.home.logfiles import LogRetention, read_log, sweep_logs
from borglet.runtimes.supervisor.logwriter import LogWriter, TokenBucket, file_name
from tests.real.runtimes.machine import key

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
    kept = [file_name("stdout", n) for n in (10, 20, 30)]
    assert sorted(os.listdir(logs)) == [*kept, *(file_name("times.stdout", n) for n in (10, 20, 30))]
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
    assert read(logs, 3, 1) == LogChunk("r", 3, 4, "\ufffd")  # less than a character, and it advances


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"stream": "../x"}, "stream: '../x' is unknown; use stdout or stderr"),
        ({"limit_bytes": 0}, "limit_bytes: 0 is too small"),
        ({"key": TaskKey("../../etc", 0, 1)}, "key: '../../etc/0/1' is not a task key"),
        ({"key": TaskKey("cd" * 16, 0, 1)}, "no logs of task"),
    ],
)
def test_a_bad_request_is_rejected_with_the_reason(logs: Path, change: dict[str, object], error: str) -> None:
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


def test_a_file_that_is_old_is_followed_by_the_next_however_small(logs: Path, descriptor: int) -> None:
    now = [1000.0]
    writer = LogWriter(descriptor, "stdout", file_bytes=100, keep=2, file_s=60, clock=lambda: now[0])
    for _hour in range(4):
        writer.write(b"tick\n")
        now[0] += 61
    writer.close()
    assert [name for name in sorted(os.listdir(logs)) if "times" not in name] == [
        file_name("stdout", 10),
        file_name("stdout", 15),
    ]


def test_a_valve_lets_a_second_s_worth_pass_at_once_and_then_as_much_a_second() -> None:
    valve = TokenBucket(100, now=0.0)
    assert valve.wait_s(now=0.0) == 0.0
    valve.passed(150, now=0.0)
    assert valve.wait_s(now=0.0) == pytest.approx(0.5)
    assert valve.wait_s(now=0.3) == pytest.approx(0.2)
    assert valve.wait_s(now=0.5) == 0.0
    valve.passed(100, now=100.0)
    assert valve.wait_s(now=100.0) == 0.0, "never more than a second's worth is saved up"
    valve.passed(100, now=100.0)
    assert valve.wait_s(now=100.0) == pytest.approx(1.0)


def found(logs: Path, text: str, offset: int = 0, **changes: object) -> LogChunk:
    return read(logs, offset, 10_000, search=text, **changes)


def test_lines_are_found_with_their_places_and_times_over_rotated_files(logs: Path, descriptor: int) -> None:
    now = [1000.0]
    writer = LogWriter(descriptor, "stdout", file_bytes=30, keep=9, clock=lambda: now[0])
    for number in range(6):
        writer.write(f"line {number} zw\u00f6lf".encode())  # the end of the line comes with the next write
        writer.write(b"\nnoise\n")
        now[0] += 20
    writer.close()
    answer = found(logs, "zw\u00f6lf")
    assert answer.complete
    assert [line.text for line in answer.lines] == [f"line {n} zw\u00f6lf" for n in range(6)]
    assert [line.at for line in answer.lines] == [1000.0 + 20 * n for n in range(6)]
    whole = b"".join((logs / name).read_bytes() for name in sorted(os.listdir(logs)) if "times" not in name)
    for line in answer.lines:
        assert whole[line.offset :].startswith(line.text.encode())
    assert [line.text for line in found(logs, "LINE 4", ignore_case=True).lines] == ["line 4 zw\u00f6lf"]
    assert found(logs, "LINE 4").lines == []
    assert [line.at for line in found(logs, "line", since=1070.0).lines] == [1060.0, 1080.0, 1100.0]
    assert read(logs, 0, 10_000, since=1095.0).text == "line 4 zw\u00f6lf\nnoise\nline 5 zw\u00f6lf\nnoise\n"


def test_a_search_goes_on_where_it_was_enough(logs: Path, descriptor: int) -> None:
    write(descriptor, *(f"match {n}\nother\n".encode() for n in range(50)), file_bytes=200, keep=99)
    texts, offset, complete = [], 0, False
    while not complete:
        answer = found(logs, "match", offset, limit_lines=7)
        assert len(answer.lines) <= 7
        texts += [line.text for line in answer.lines]
        offset, complete = answer.end, answer.complete
    assert texts == [f"match {n}" for n in range(50)]


def test_a_search_is_bounded_in_time_and_its_parts_make_up_the_whole(
    logs: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfiles, "SEARCH_BYTES", 1)
    monkeypatch.setattr(logfiles, "BLOCK_BYTES", 64)
    write(descriptor, *(b"x" * 40 + b" needle\n" for _ in range(20)), b"needle" * 60, file_bytes=900, keep=9)
    count, offset, parts, complete = 0, 0, 0, False
    while not complete:
        answer = found(logs, "needle", offset)
        count, parts = count + len(answer.lines), parts + 1
        assert answer.end > offset or answer.complete
        offset, complete = answer.end, answer.complete
    assert parts > 5
    assert count >= 21  # a line longer than a block counts once per block


def test_sweep_takes_rotated_parts_of_running_tasks_when_all_else_is_gone(tmp_path: Path) -> None:
    for name in ("left", "running"):
        directory = tmp_path / "logs" / name
        directory.mkdir(parents=True)
        for number in range(3):
            path = directory / file_name("stdout", number * 600)
            path.write_bytes(b"x" * 600)
            os.utime(path, (100 + number, 100 + number))
    retention = LogRetention(keep_s=1e9, budget_bytes=1300)
    assert sweep_logs(tmp_path, now=1000, present={"running"}, retention=retention) == ["left"]
    kept = [file_name("stdout", 600), file_name("stdout", 1200)]
    assert sorted(os.listdir(tmp_path / "logs" / "running")) == kept
    sweep_logs(tmp_path, now=1000, present={"running"}, retention=LogRetention(keep_s=1e9, budget_bytes=0))
    assert os.listdir(tmp_path / "logs" / "running") == [file_name("stdout", 1200)], "never the newest"


def test_sweep_forgets_by_age_then_by_size_and_never_the_present(tmp_path: Path) -> None:
    for name, age in (("old", 100), ("big", 50), ("new", 10), ("running", 1000)):
        directory = tmp_path / "logs" / name
        directory.mkdir(parents=True)
        (directory / "stdout.0").write_bytes(b"x" * 600)
        os.utime(directory, (1000 - age, 1000 - age))
    retention = LogRetention(keep_s=80, budget_bytes=1600)
    deleted = sweep_logs(tmp_path, now=1000, present={"running"}, retention=retention)
    assert deleted == ["old", "big"]
    assert sorted(os.listdir(tmp_path / "logs")) == ["new", "running"]
