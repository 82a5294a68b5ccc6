"""Builders for tests of the Borglet: tasks, desired states, and an agent's state with a clock."""

from __future__ import annotations

from borglet.messages import (
    Desired,
    EndCause,
    Exit,
    HealthCheck,
    PackageRef,
    Phase,
    Report,
    RestartPolicy,
    RunTask,
    StopTask,
    TaskKey,
    TaskReport,
    opened,
)
from borglet.runtimes.base.runtime import Presence
from borglet.state.agent_state import AgentState
from borglet.state.events import (
    Adopted,
    Ended,
    Event,
    PackagesInstalled,
    Polled,
    ProbeAnswered,
    Saved,
    Started,
    TimePassed,
)
from borglet.state.instructions import Instruction, Remembered, Save, Start

JOB = "a" * 32


def key(index: int = 0, incarnation: int = 1, job: str = JOB) -> TaskKey:
    return TaskKey(job, index, incarnation)


def run_task(index: int = 0, incarnation: int = 1, **changes: object) -> RunTask:
    fields: dict[str, object] = {
        "key": key(index, incarnation),
        "name": f"cell/tenant/web/{index}",
        "command": ["serve"],
        "env": {},
        "limit": {"cpu": 100, "ram": 2**20},
        "ports": {"http": 20000 + index},
        "priority": 200,
        "latency_sensitive": True,
        "prod": True,
        "spec_version": 1,
    }
    return RunTask(**{**fields, **changes})  # type: ignore[arg-type]


def package(name: str = "app@v1", digit: str = "a", **changes: object) -> PackageRef:
    fields: dict[str, object] = {"name": name, "digest": f"sha256:{digit * 64}", "size_bytes": 1000}
    return PackageRef(**{**fields, **changes})  # type: ignore[arg-type]


def check(**changes: object) -> HealthCheck:
    return HealthCheck(**{"kind": "http", "port": "http", **changes})  # type: ignore[arg-type]


def policy(**changes: object) -> RestartPolicy:
    return RestartPolicy(**changes)  # type: ignore[arg-type]


def stop_task(index: int = 0, incarnation: int = 1, notice_s: float | None = None, cause: str = "kill") -> StopTask:
    return StopTask(key(index, incarnation), cause, notice_s)


def desired(
    revision: int,
    run: list[RunTask] | None = None,
    stop: list[StopTask] | None = None,
    *,
    history: str = "h1",
    ordinal: int = 1,
    epoch: int = 1,
) -> Desired:
    return Desired(history, ordinal, revision, epoch, f"{history}-{revision}-{epoch}", run or [], stop or [])


def exited(status: int, at: float = 0.0) -> Exit:
    return Exit(EndCause.EXITED, at, status=status)


def killed(cause: EndCause = EndCause.SIGNALED, at: float = 0.0) -> Exit:
    return Exit(cause, at, signal=9)


class Machine:
    """An `AgentState` with a clock that only the test moves. Each save succeeds at once."""

    def __init__(
        self, presences: tuple[Presence, ...] = (), remembered: Remembered | None = None, *, now: float = 1000.0
    ) -> None:
        self.state = AgentState()
        self.now = now
        self.saved = remembered if remembered is not None else Remembered()
        self.sequence = 0
        self.session = 1
        self.first = self.take(Adopted(self.saved, presences))

    def take(self, event: Event) -> list[Instruction]:
        """Handle an event and return the instructions that follow, without saves, which are done at once."""
        out: list[Instruction] = []
        for instruction in self.state.handle(event, now=self.now):
            if isinstance(instruction, Save):
                self.saved = instruction.remembered
                out += self.take(Saved(instruction.generation))
            else:
                out.append(instruction)
        self.state.validate()
        return out

    def wants(self, wanted: Desired | None = None) -> list[Instruction]:
        """Handle one poll, with a desired state or without, and return the instructions."""
        self.sequence += 1
        return self.take(Polled(self.session, self.sequence, wanted))

    def report(self) -> Report:
        return opened(self.state.wire_report(session=self.session, sequence=self.sequence))

    def of(self, wanted: TaskKey) -> TaskReport:
        return next(task for task in self.report().tasks if task.key == wanted)

    def phase(self, wanted: TaskKey) -> Phase:
        return self.of(wanted).phase

    def installed(self, wanted: TaskKey, run: int = 1) -> list[Instruction]:
        return self.take(PackagesInstalled(wanted, run))

    def up(self, wanted: TaskKey, run: int = 1) -> list[Instruction]:
        return self.take(Started(wanted, run))

    def ends(self, wanted: TaskKey, exit_: Exit, run: int = 1) -> list[Instruction]:
        return self.take(Ended(wanted, run, exit_))

    def probed(self, wanted: TaskKey, ok: bool, detail: str = "refused", run: int = 1) -> list[Instruction]:
        return self.take(ProbeAnswered(wanted, run, ok, detail))

    def after(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self.take(TimePassed())

    def restarted(self, *presences: Presence) -> Machine:
        """Return a new Borglet after this one died. `presences`: the tasks that it finds."""
        return Machine(presences, self.saved, now=self.now)


def starts(instructions: list[Instruction]) -> list[tuple[TaskKey, int]]:
    return [(found.task.key, found.run) for found in instructions if isinstance(found, Start)]
