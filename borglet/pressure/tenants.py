"""A running task as the control loop sees it."""

from __future__ import annotations

from dataclasses import dataclass

from borglet.messages import RunTask, TaskKey, Usage


@dataclass(frozen=True, slots=True)
class PressureTenant:
    """`usage`: over the last few seconds. `ready`: how many of its threads were ready to run when looked at."""

    task: RunTask
    usage: Usage
    ready: int = 0

    @property
    def key(self) -> TaskKey:
        return self.task.key
