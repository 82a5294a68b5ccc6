"""The lifecycle of one incarnation on its machine, as one table. The README's diagram is generated from it.

Only a task with packages is ever `installing`. It has no processes in that phase.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from borglet.messages import Phase, TaskKey


class PhaseStep(StrEnum):
    """A step in the life of an incarnation."""

    ASSIGN = "assign"  # the master lists it in `run` for the first time
    ADOPT = "adopt"  # an earlier Borglet started it
    INSTALL = "install"  # its packages are downloaded, unpacked, or already present
    START = "start"  # nothing blocks it any more
    STARTED = "started"  # its program runs
    STOP = "stop"  # asked for by the master, or it is unhealthy
    RETRY = "retry"  # it ended and is to be started again
    FINISH = "finish"  # it ended for good


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
    """A step that the table does not contain for this phase. It is a bug of the Borglet; the text has the history."""

    def __init__(self, key: TaskKey, phase: Phase | None, step: PhaseStep, story: Iterable[str]) -> None:
        before = "; ".join(story) or "nothing"
        super().__init__(f"task {key}: no step {step} from phase {phase or 'none'}; before that: {before}")
        self.key, self.phase, self.step = key, phase, step


def after(key: TaskKey, phase: Phase | None, step: PhaseStep, story: Iterable[str]) -> Phase:
    """The phase that `step` leads to. Raises `IllegalStep`."""
    try:
        return TRANSITIONS[phase, step]
    except KeyError:
        raise IllegalStep(key, phase, step, story) from None


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for (phase, step), to in TRANSITIONS.items():
        lines.append(f"    {phase or '[*]'} --> {to}: {step}")
    lines.append(f"    {Phase.ENDED} --> [*]: acknowledged")
    return "\n".join(lines)
