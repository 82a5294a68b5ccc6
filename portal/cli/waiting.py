"""Waiting for a job: until all of it runs, its names have followed, or it is over."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from portal.cli import context, names, output
from portal.cli.context import Context, Job, JobArgument
from portal.cli.failure import Failed
from portal.cli.jobs import in_short

app = typer.Typer()

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class Wanted(StrEnum):
    RUNNING = "running"
    VISIBLE = "visible"
    DONE = "done"


@app.command()
def wait(
    ctx: typer.Context,
    job: JobArgument,
    wanted: Annotated[Wanted, typer.Option("--for", help="What to wait for.")] = Wanted.RUNNING,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds.")] = 300.0,
) -> None:
    """Wait until all tasks are up (and healthy), names have followed too, or the job is over.

    Exit status 1 when the time is over, when a job is over that should run, and when a job that should end failed.
    """
    ours = context.of(ctx)
    waiting = _Waiting(ours, ours.job(job), wanted)
    until, pause = time.monotonic() + timeout, _FIRST_PAUSE_S
    while not waiting.is_over():
        left = until - time.monotonic()
        if left <= 0:
            raise Failed("timeout", f"{waiting.job} is not {wanted} after {timeout:g} s: {waiting.told}")
        time.sleep(min(pause, left))
        pause = min(_LONGEST_PAUSE_S, pause * 1.2)
    return output.as_json(waiting.answer) if ours.json else output.say(f"{waiting.job}: {waiting.told}.")


@dataclass
class _Waiting:
    """`whole_at`: revision at which all tasks were first seen up, and still are."""

    ours: Context
    job: Job
    wanted: Wanted
    answer: dict[str, Any] | None = None
    whole_at: int | None = None
    trouble: str = ""

    @property
    def told(self) -> str:
        if self.answer is None or self.trouble:
            return self.trouble
        if self.answer["state"] == "dead":
            return f"it is over, {self.answer['outcome']}"
        return in_short(self.answer)

    def is_over(self) -> bool:
        """Raises `Failed` for what waiting can't change. A portal that was there and is away may be back."""
        try:
            self.answer = self.ours.client.get(self.job.path)
            self.trouble = ""
            return self._reached(self.answer)
        except Failed as failed:
            if self.answer is None or not failed.passing:
                raise
            self.trouble = failed.detail
            return False

    def _reached(self, answer: dict[str, Any]) -> bool:
        dead: bool = answer["state"] == "dead"
        if self.wanted is Wanted.DONE:
            if dead and answer["outcome"] == "failed":
                raise Failed("job-failed", f"{self.job} failed: `borgctl why {self.job}` says why")
            return dead
        if dead:
            raise Failed(
                "job-ended", f"{self.job} is over ({answer['outcome']}): it will not be {self.wanted}"
            )
        living = answer["tasks_total"] - answer["tasks_dead"]
        if not answer["tasks_up"] == living > 0 or answer["update"]:
            self.whole_at = None
            return False
        if self.whole_at is None:
            self.whole_at = answer["revision"]
        if self.wanted is Wanted.RUNNING:
            return True
        return names.revision_of_zone(self.ours, self.job.cell) >= self.whole_at
