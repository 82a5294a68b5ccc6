"""Tests of what follows when a run of a task has ended."""

from __future__ import annotations

import pytest

from borglet.messages import EndCause, Exit
from scheduling.link.views.exit_verdict import ExitVerdict, TaskExit, describe, judge

OK = Exit(EndCause.EXITED, 1.0, status=0)
BAD = Exit(EndCause.EXITED, 1.0, status=3)
TOO_LONG = Exit(EndCause.TIME_LIMIT, 1.0, signal=15)


@pytest.mark.parametrize(
    ("exit_", "restart_on", "moves", "verdict"),
    [
        (OK, "failure", 0, ExitVerdict("exited with status 0", how="finished")),
        (OK, "never", 0, ExitVerdict("exited with status 0", how="finished")),
        (OK, "always", 0, ExitVerdict("exited with status 0, after 5 restarts", cause="failure", avoid=True)),
        (BAD, "failure", 2, ExitVerdict("exited with status 3, after 5 restarts", cause="failure", avoid=True)),
        (BAD, "failure", 3, ExitVerdict("exited with status 3, after 5 restarts; moved 3 times before", how="failed")),
        (
            BAD,
            "never",
            0,
            ExitVerdict("exited with status 3, after 5 restarts; its restart policy allows no restart", how="failed"),
        ),
        (TOO_LONG, "failure", 0, ExitVerdict("time limit, killed by signal 15, after 5 restarts", how="failed")),
        (
            TOO_LONG,
            "always",
            0,
            ExitVerdict("time limit, killed by signal 15, after 5 restarts", cause="failure", avoid=True),
        ),
        (
            Exit(EndCause.SUPERVISOR_LOST, 1.0),
            "failure",
            0,
            ExitVerdict("supervisor lost, ended, after 5 restarts", cause="failure", avoid=True),
        ),
        (
            Exit(EndCause.MACHINE_SHORT, 1.0, signal=9, detail="no memory left"),
            "never",
            9,
            ExitVerdict("machine short, killed by signal 9: no memory left", cause="out-of-resources", avoid=True),
        ),
        (
            Exit(EndCause.MACHINE_RESTARTED, 1.0),
            "failure",
            0,
            ExitVerdict("machine restarted, ended", cause="machine-failure"),
        ),
        (
            Exit(EndCause.STOPPED, 1.0, signal=15),
            "failure",
            0,
            ExitVerdict("stopped on its machine: no reason given", cause="other"),
        ),
    ],
)
def test_what_becomes_of_a_task_whose_incarnation_is_over(
    exit_: Exit, restart_on: str, moves: int, verdict: ExitVerdict
) -> None:
    assert judge(TaskExit(7, 3, exit_, 5, restart_on, 3), moves=moves) == verdict


def test_every_cause_of_an_end_has_a_verdict_and_a_sentence() -> None:
    for cause in EndCause:
        verdict = judge(TaskExit(7, 3, Exit(cause, 1.0, detail="x"), 0, "failure", 3), moves=0)
        assert bool(verdict.how) != bool(verdict.cause)
        assert describe(Exit(cause, 1.0, detail="x")).endswith(": x")
