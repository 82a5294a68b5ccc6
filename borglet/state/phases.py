"""The lifecycle of one incarnation on its machine, as one table (`TRANSITIONS`). The README shows it as a diagram.

Only a task with packages enters the phase `installing`. In this phase it has no processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from borglet.messages import Phase, TaskKey


class PhaseStep(StrEnum):
    """A step by which an incarnation changes its phase."""

    ASSIGN = "assign"  # the master lists the incarnation in `run` for the first time
    ADOPT = "adopt"  # the Borglet finds an incarnation that an earlier Borglet started
    INSTALL = "install"  # the Borglet installs the packages
    START = "start"  # the runtime starts the program
    STARTED = "started"  # the program runs
    STOP = "stop"  # the master stops the incarnation, it is unhealthy, or it has reached its time limit
    RETRY = "retry"  # the run ended, and the incarnation will start again
    FINISH = "finish"  # the run ended, and the incarnation will not start again


TRANSITIONS: dict[tuple[Phase | None, PhaseStep], Phase] = {
    (None, PhaseStep.ASSIGN): Phase.ASSIGNED,
    (None, PhaseStep.ADOPT): Phase.UP,
    (Phase.ASSIGNED, PhaseStep.INSTALL): Phase.INSTALLING,
    (Phase.ASSIGNED, PhaseStep.START): Phase.STARTING,
    (Phase.ASSIGNED, PhaseStep.STOP): Phase.ENDED,
    (Phase.INSTALLING, PhaseStep.START): Phase.STARTING,
    (Phase.INSTALLING, PhaseStep.STOP): Phase.ENDED,
    (Phase.INSTALLING, PhaseStep.RETRY): Phase.BACKOFF,
    (Phase.INSTALLING, PhaseStep.FINISH): Phase.ENDED,
    (Phase.STARTING, PhaseStep.STARTED): Phase.UP,
    (Phase.STARTING, PhaseStep.STOP): Phase.STOPPING,
    (Phase.STARTING, PhaseStep.RETRY): Phase.BACKOFF,
    (Phase.STARTING, PhaseStep.FINISH): Phase.ENDED,
    (Phase.UP, PhaseStep.STOP): Phase.STOPPING,
    (Phase.UP, PhaseStep.RETRY): Phase.BACKOFF,
    (Phase.UP, PhaseStep.FINISH): Phase.ENDED,
    (Phase.STOPPING, PhaseStep.STARTED): Phase.STOPPING,
    (Phase.STOPPING, PhaseStep.STOP): Phase.STOPPING,
    (Phase.STOPPING, PhaseStep.RETRY): Phase.BACKOFF,
    (Phase.STOPPING, PhaseStep.FINISH): Phase.ENDED,
    (Phase.BACKOFF, PhaseStep.INSTALL): Phase.INSTALLING,
    (Phase.BACKOFF, PhaseStep.START): Phase.STARTING,
    (Phase.BACKOFF, PhaseStep.STOP): Phase.ENDED,
}

# Phases in which processes of the incarnation exist, or may exist at any moment.
WITH_PROCESSES = frozenset({Phase.STARTING, Phase.UP, Phase.STOPPING})


class IllegalStep(RuntimeError):
    """The error for a step that the table `TRANSITIONS` does not allow in a task's phase. The cause is a bug in the
    Borglet. The message lists the task's earlier steps.
    """

    def __init__(self, key: TaskKey, phase: Phase | None, step: PhaseStep, story: Iterable[str]) -> None:
        before = "; ".join(story) or "nothing"
        super().__init__(f"task {key}: phase {phase or 'none'} does not allow the step {step}; earlier steps: {before}")
        self.key, self.phase, self.step = key, phase, step


def after(key: TaskKey, phase: Phase | None, step: PhaseStep, story: Iterable[str]) -> Phase:
    """Return the phase after the step `step` in the phase `phase`. `story`: the task's earlier steps, for the error
    text. Raises `IllegalStep` if the table `TRANSITIONS` does not allow this step.
    """
    try:
        return TRANSITIONS[phase, step]
    except KeyError:
        raise IllegalStep(key, phase, step, story) from None


def diagram() -> str:
    """Return the phases and the steps between them (`TRANSITIONS`) as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for (phase, step), to in TRANSITIONS.items():
        lines.append(f"    {phase or '[*]'} --> {to}: {step}")
    lines.append(f"    {Phase.ENDED} --> [*]: acknowledged")
    return "\n".join(lines)
