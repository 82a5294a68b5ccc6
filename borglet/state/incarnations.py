"""One incarnation of a task on a machine, and the report about it. Pure."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field

from borglet.messages import NO_USAGE, EndCause, Exit, Health, Phase, RunTask, SecretRef, TaskKey, TaskReport, Usage
from borglet.state.health_watch import HealthWatch
from borglet.state.phases import WITH_PROCESSES, PhaseStep, after

log = logging.getLogger(__name__)
STORY_LENGTH = 8


@dataclass(slots=True)
class Incarnation:
    """The state of one incarnation of a task on this machine. Times are seconds since the epoch."""

    task: RunTask
    phase: Phase | None = None  # None only until the first step
    run: int = 0  # number of starts so far; the installation of packages belongs to a start
    started_at: float = 0.0
    exit: Exit | None = None
    failures: tuple[float, ...] = ()
    start_at: float = 0.0  # in backoff: time of the next start
    watch: HealthWatch | None = None
    usage: Usage = NO_USAGE
    stop_notice_s: float | None = None  # the shortest notice given so far in this run
    stop_cause: EndCause = EndCause.STOPPED
    stop_detail: str = ""
    stop_at: float | None = None  # time at which the runtime is asked to stop it, also again after a failed stop
    leaving: bool = False  # names no longer resolve to it, and SIGTERM is not sent yet
    was_up: bool = False  # names may have resolved to this run
    resize_due: bool = False  # the runtime has not applied the latest limits yet
    prepared_for: list[SecretRef] = field(default_factory=list)  # secrets for which values were requested
    installed: bool = False  # its packages are installed, and it waits until it may start
    ran: bool = False  # its processes were started before
    given_up: bool = False  # it used up its restarts
    quarantined: bool = False
    end_report: tuple[int, int] | None = None  # (session, sequence) of the first report that contains its end
    acknowledged: bool = False  # the shard asked again after that report
    dropped: bool = False  # a desired state received after its end does not list it
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))

    @property
    def key(self) -> TaskKey:
        return self.task.key

    @property
    def has_processes(self) -> bool:
        return self.phase in WITH_PROCESSES

    def step(self, step: PhaseStep, *, now: float) -> None:
        """Change the phase of this incarnation by the step `step`. Raises `IllegalStep` if the table `TRANSITIONS` does
        not allow this step in the present phase.
        """
        phase = after(self.key, self.phase, step, self.story)
        self.story.append(f"{now:.3f} {step} -> {phase}")
        self.phase = phase
        log.info("task %s (%s): %s in run %d; its phase is now %s", self.task.name, self.key, step, self.run, phase)

    def report(self, *, expected: bool, address: str) -> TaskReport:
        """Return the report about this incarnation, without its usage. `expected`: whether the desired state lists the
        incarnation.
        """
        assert self.phase is not None
        return TaskReport(
            key=self.task.key,
            name=self.task.name,
            phase=self.phase,
            health=self.watch.health if self.watch is not None else Health.UNKNOWN,
            restarts=max(0, self.run - 1),
            started_at=self.started_at,
            spec_version=self.task.spec_version,
            exit=self.exit,
            expected=expected,
            quarantined=self.quarantined,
            address=address,
        )
