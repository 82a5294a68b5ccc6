"""`borgctl wait`: waits until a job runs, until all name servers have its names, or until it has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, JobArgument, JobReference
from portal.cli.failure import CommandFailed
from portal.cli.jobs import in_short
from portal.cli.paths import part

app = Commands()

# Limits on the seconds in which name servers must answer.
_SHORTEST_SURVEY_S, _LONGEST_SURVEY_S = 0.8, 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class WaitGoal(StrEnum):
    RUNNING = "running"
    VISIBLE = "visible"
    DONE = "done"


@app.command()
def wait(
    session: Context,
    job: JobArgument,
    wanted: Annotated[WaitGoal, typer.Option("--for", help="State of the job to wait for.")] = WaitGoal.RUNNING,
    timeout: Annotated[float, typer.Option(min=0, help="Maximum time to wait, in seconds.")] = 300.0,
    without_secondaries: Annotated[
        bool,
        typer.Option("--without-secondaries", help="With `--for visible`: do not wait for secondary name servers."),
    ] = False,
) -> None:
    """Wait until all tasks of a job run and are healthy, until its names are visible, or until the job is done.

    If `max_running` limits how many tasks of the job run at once, this number is enough.

    `visible`: every resolver answers with the latest changes of the job, and every known secondary name server has the
    same version of the zone.

    The exit status is 1 if the timeout expires, if the job ends before it runs, or, with `--for done`, if the job
    fails. After a timeout, the message lists the servers that are not up to date.
    """
    until, pause = time.monotonic() + timeout, _FIRST_PAUSE_S
    waiting = _Waiting(session, session.job(job), wanted, until, secondaries=not without_secondaries)
    session.client.until = until
    try:
        while not waiting.is_over():
            left = until - time.monotonic()
            if left <= 0:
                raise CommandFailed("timeout", f"{waiting.job} is not {wanted} after {timeout:g} s: {waiting.summary}")
            output.now_is(f"{waiting.job}: {waiting.summary}")
            time.sleep(min(pause, left))
            pause = min(_LONGEST_PAUSE_S, pause * 1.2)
    finally:
        output.now_is("")
    return output.as_json(waiting.answer) if session.json else output.say(f"{waiting.job}: {waiting.summary}.")


@dataclass
class _Waiting:
    """The state of a command that waits until a job reaches the goal `wanted`.

    `whole_at`: the first revision of the journal at which the command saw all tasks up. `serial`: the serial number of
    the resolvers' zone at that revision. `behind`: one text for each server that has not reached that revision or
    serial number. `trouble`: why the portal did not answer the last request.
    """

    session: Context
    job: JobReference
    wanted: WaitGoal
    until: float
    secondaries: bool = True
    answer: dict[str, Any] | None = None
    whole_at: int | None = None
    serial: int | None = None
    behind: tuple[str, ...] = ()
    trouble: str = ""

    @property
    def summary(self) -> str:
        if self.answer is None or self.trouble:
            return self.trouble
        if self.answer["state"] == "dead":
            return f"the job has ended ({self.answer['outcome']})"
        behind = f", but {'; '.join(self.behind)}" if self.behind else ""
        return f"{in_short(self.answer)}{behind}"

    def is_over(self) -> bool:
        """Return whether the goal is reached. Raises `CommandFailed` if the goal cannot be reached any more.

        If the portal becomes unreachable after its first answer, return False, because the portal may answer again.
        """
        try:
            self.answer = self.session.client.get(self.job.path)
            self.trouble = ""
            return self._reached(self.answer)
        except CommandFailed as failed:
            if self.answer is None or not failed.passing:
                raise
            if time.monotonic() < self.until:  # at the deadline, the earlier answer is more useful
                self.trouble = failed.detail
            return False

    def _reached(self, answer: dict[str, Any]) -> bool:
        dead: bool = answer["state"] == "dead"
        if self.wanted is WaitGoal.DONE:
            if dead and answer["outcome"] == "failed":
                raise CommandFailed("job-failed", f"{self.job} failed: `borgctl why {self.job}` explains why")
            return dead
        if dead:
            problem = f"{self.job} has ended ({answer['outcome']}), so it will not be {self.wanted}; submit it again"
            raise CommandFailed("job-ended", problem)
        living = answer["tasks_total"] - answer["tasks_dead"]
        wanted = min(living, answer.get("max_running") or living)  # older portals do not send it
        if not answer["tasks_up"] >= wanted > 0 or answer["update"]:
            self.whole_at, self.serial, self.behind = None, None, ()
            return False
        if self.whole_at is None:
            self.whole_at = answer["revision"]
        if self.wanted is WaitGoal.RUNNING:
            return True
        self.behind = self.behind or ("the portal has not reported the state of the name servers yet",)
        self.behind = tuple(self._behind(self.whole_at))
        return not self.behind

    def _behind(self, revision: int) -> Iterator[str]:
        left = min(_LONGEST_SURVEY_S, max(_SHORTEST_SURVEY_S, self.until - time.monotonic()))
        followed = self.session.client.get(f"/bns/{part(self.job.cell)}/", within_s=f"{left:.3f}")
        late = [one for one in followed["resolvers"] if (one["revision"] or 0) < revision]
        yield from (_late(one, one["revision"], revision) for one in late)
        if late or not self.secondaries:
            return
        if self.serial is None:
            self.serial = followed["serial"]
        for one in followed["secondaries"]:
            if one["serial"] is None or (self.serial is not None and _newer(self.serial, one["serial"])):
                yield _late(one, one["serial"], self.serial)


def _late(follower: dict[str, Any], has: int | None, wanted: int | None) -> str:
    server = f"{follower['kind']} {follower['address']}"
    if has is None:
        return f"{server} does not report its version ({follower['error'] or 'no answer'})"
    return f"{server} is at {has}, not yet at {wanted}"


def _newer(a: int, b: int) -> bool:
    """Return whether the serial number `a` is newer than `b`. RFC 1982 §3.2 defines this comparison."""
    return a != b and (a - b) % 2**32 < 2**31
