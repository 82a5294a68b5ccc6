import os
from pathlib import Path

from portal.up.supervision.logfiles import LogFile


def test_a_full_log_is_rotated_and_the_writer_goes_on_in_the_same_file(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "web.log", max_bytes=10, kept=2)
    writer = log.open()
    for round_ in range(3):
        os.write(writer, f"round {round_} is long\n".encode())
        assert log.rotate()
    os.write(writer, b"last\n")
    os.close(writer)
    assert not log.rotate()
    assert log.path.read_text() == "last\n"
    assert (tmp_path / "web.log.1").read_text() == "round 2 is long\n"
    assert (tmp_path / "web.log.2").read_text() == "round 1 is long\n"
    assert not (tmp_path / "web.log.3").exists()


def test_tail_shows_the_last_lines(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "web.log")
    assert log.tail(2) == ""
    log.path.write_text("a\nb\nc\n")
    assert log.tail(2) == "b\nc"


def test_a_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "web.log")
    os.close(log.open())
    assert log.path.stat().st_mode & 0o777 == 0o600
