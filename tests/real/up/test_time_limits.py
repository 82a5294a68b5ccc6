"""Tests of how long the supervisor waits for a process, with virtual time."""

import os
from pathlib import Path

import pytest

from portal.up.supervision.time_limits import AT_LEAST_S, MORE_TIMES, ProcessPatience, Work, work_of


def test_a_process_that_does_nothing_has_its_limit() -> None:
    patience = ProcessPatience(60.0, now=100.0, work=Work())
    assert not patience.is_due(159.0)
    assert patience.is_due(160.0)
    assert patience.verdict(160.0, Work(cpu_s=1.0)).over


@pytest.mark.parametrize("work", [Work(cpu_s=41.0), Work(log_bytes=10), Work(pulse_at=7.0)])
def test_a_process_that_works_gets_another_window(work: Work) -> None:
    patience = ProcessPatience(60.0, now=100.0, work=Work())
    found = patience.verdict(160.0, work)
    assert not found.over
    assert found.progress == f"it has used {work.cpu_s:.0f} s of CPU in 60 s"
    assert not patience.is_due(219.0)
    assert patience.verdict(220.0, work).over, "it has done nothing since"


def test_a_log_that_grows_is_not_a_sign_of_health() -> None:
    patience = ProcessPatience(60.0, now=0.0, work=Work(), count_log=False)
    assert patience.verdict(60.0, Work(log_bytes=10)).over


@pytest.mark.parametrize("limit_s", [1.0, 300.0])
def test_a_process_that_spins_for_ever_is_ended_too(limit_s: float) -> None:
    patience, now = ProcessPatience(limit_s, now=0.0, work=Work()), 0.0
    for _ in range(10_000):
        now += limit_s
        if patience.verdict(now, Work(cpu_s=now)).over:
            break
    assert now == max(MORE_TIMES * limit_s, AT_LEAST_S)


def test_work_is_read_of_a_whole_session(tmp_path: Path) -> None:
    log, pulse = tmp_path / "log", tmp_path / "pulse"
    log.write_text("four")
    found = work_of(os.getsid(0), log, pulse)
    assert found.log_bytes == 4
    assert found.pulse_at == 0.0
    pulse.touch()
    assert work_of(os.getsid(0), log, pulse).pulse_at > 0.0
