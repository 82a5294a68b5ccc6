"""Property tests of the Borglet's decisions: they hold for any order of events, also for repeated ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from borglet.messages import Desired, EndCause, Exit, RunTask, StopTask, TaskKey, opened
from borglet.runtimes.base.runtime import Presence
from borglet.state.agent_state import AgentState
from borglet.state.events import (
    Adopted,
    Ended,
    Event,
    InstallFailed,
    PackagesInstalled,
    Polled,
    ProbeAnswered,
    Saved,
    Started,
    StartRefused,
    TimePassed,
)
from borglet.state.instructions import CancelInstall, Install, Remembered, Remove, Save, Start, Terminate
from tests.examples import examples
from tests.unit.borglet.builders import check, desired, exited, key, killed, package, policy, run_task

INDEXES, INCARNATIONS = range(2), range(1, 4)
KEYS = [key(index, incarnation) for index in INDEXES for incarnation in INCARNATIONS]
TASKS = {
    known: run_task(
        known.index,
        known.incarnation,
        health=check(failures=1, grace_s=0) if known.incarnation == 2 else None,
        restart=policy(max_failures=2, on="never" if known.incarnation == 3 else "failure"),
        waits_for=[key(1 - known.index)] if known.incarnation == 3 else [],
        packages=[package()] if known.incarnation > 1 else [],
        leave_s=0.0 if known.incarnation == 3 else 6.0,
    )
    for known in KEYS
}
STOPS = [("kill", None), ("kill", 0.0), ("kill", 3.0), ("preemption", 12.0), ("drain", 30.0), ("machine-failure", None)]
EXITS = [exited(0), exited(1), killed(), killed(EndCause.STOPPED), killed(EndCause.UNHEALTHY)]


@dataclass(frozen=True)
class Stop:
    """A stop of a task, received at time `at`.

    `leaves`: whether clients may still use the task's address then, so that SIGTERM has to wait.
    """

    asked: StopTask
    at: float
    leaves: bool

    @property
    def bound_s(self) -> float | None:
        return self.asked.notice_s

    @property
    def leave_s(self) -> float:
        task = TASKS[self.asked.key]
        if not self.leaves or self.asked.cause == "machine-failure":
            return 0.0
        return task.leave_s if self.bound_s is None else min(max(self.bound_s - task.notice_s, 0.0), task.leave_s)


def sigterm_at(stops: list[Stop]) -> float:
    """Return the time when SIGTERM is due. A later stop can only make it earlier."""
    return min((stop.at + stop.leave_s for stop in stops), default=math.inf)


class Borglet(RuleBasedStateMachine):
    """A Borglet with a runtime and a master. The runtime's messages are true, but can come late and repeatedly."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.revision, self.ordinal, self.sequence, self.session = 1000.0, 0, 1, 0, 1
        self.running: dict[TaskKey, int] = {}
        self.kept: dict[TaskKey, Presence] = {}
        self.remembered = Remembered()
        self.listed: Desired | None = None  # what the Borglet last acknowledged
        self.news: list[Started | Ended] = []
        self.told: dict[TaskKey, int] = {}  # sequence of the report that contained an end
        self.heard: set[TaskKey] = set()  # ends that the shard has received
        self.installing: dict[TaskKey, int] = {}
        self.to_stop: set[TaskKey] = set()  # runs that the master asked to stop at some time
        self.stops: dict[TaskKey, list[Stop]] = {}  # by run, in the order in which the Borglet received them
        self.terminated: set[TaskKey] = set()  # runs that got SIGTERM

    @initialize()
    def open(self) -> None:
        self.state = AgentState()
        self.take(Adopted(self.remembered, tuple(self.kept.values())))

    def take(self, event: Event) -> None:
        for instruction in self.state.handle(event, now=self.now):
            match instruction:
                case Save():
                    self.remembered = instruction.remembered
                    self.take(Saved(instruction.generation))
                case Install():
                    assert instruction.task.key not in self.installing, "installed twice at once"
                    self.installing[instruction.task.key] = instruction.run
                case CancelInstall():
                    self.installing.pop(instruction.key, None)  # its packages may be installed already
                case Start():
                    self.start(instruction.task, instruction.run)
                case Terminate():
                    wanted = {task.key for task in self.in_force.run}
                    self.to_stop |= {stop.key for stop in self.in_force.stop}
                    assert instruction.key in self.to_stop or (
                        instruction.key in wanted and instruction.cause is EndCause.UNHEALTHY
                    ), "stopped something that the master never listed to be stopped"
                    self.terminate(instruction)
                case Remove():
                    assert instruction.key not in self.running
                    assert instruction.key in self.heard, "an end was lost"
                    self.heard.discard(instruction.key)
                    self.kept.pop(instruction.key, None)
                    # A runtime reports nothing about a run that it was asked to remove.
                    self.news = [news for news in self.news if news.key != instruction.key]

    def terminate(self, told: Terminate) -> None:
        stops = self.stops.get(told.key, [])
        if told.key not in self.terminated and told.cause is EndCause.STOPPED:
            assert self.now == sigterm_at(stops), "told before clients forgot it, or too late"
            bounds = [stop.at + stop.bound_s for stop in stops if stop.bound_s is not None]
            assert self.now + told.notice_s <= min(bounds, default=math.inf), "killed later than the bound"
        self.terminated.add(told.key)

    def hear(self, stop: list[StopTask], *, adopted: bool = False) -> None:
        """Record stops that the Borglet receives.

        A stop counts from the time of its first receipt, even if later desired states do not list it.
        """
        self.to_stop |= {asked.key for asked in stop}
        served = {inc.key for inc in self.state.incarnations() if inc.phase == "up" and inc.was_up}
        for asked in stop:
            known = self.stops.setdefault(asked.key, [])
            if asked.key in self.running and (not known or known[-1].asked != asked):
                leaves = adopted or asked.key in served if not known else known[0].leaves
                known.append(Stop(asked, self.now, leaves))

    def forget_stops(self, known: TaskKey) -> None:
        self.stops.pop(known, None)
        self.terminated.discard(known)

    @property
    def in_force(self) -> Desired:
        assert self.remembered.desired is not None
        return self.remembered.desired

    def start(self, task: RunTask, run: int) -> None:
        same = [known for known in self.running if (known.job, known.index) == (task.key.job, task.key.index)]
        assert not same, f"{task.key} started beside {same}"
        assert task.key in {wanted.key for wanted in self.in_force.run}, "started what nobody wants"
        for victim in task.waits_for:
            assert victim not in self.running, f"{task.key} did not wait for {victim}"
        before = self.kept.get(task.key)
        assert before is None or before.run < run, "a run number was used twice"
        assert task.key not in self.installing, "started before its packages were there"
        self.to_stop.discard(task.key)
        self.forget_stops(task.key)
        self.running[task.key] = run
        self.kept[task.key] = Presence(task, run, self.now, None)
        self.news.append(Started(task.key, run))

    def poll(self, wanted: Desired | None) -> None:
        self.sequence += 1
        self.heard |= {known for known, told in self.told.items() if told < self.sequence}
        self.take(Polled(self.session, self.sequence, wanted))

    @rule(
        run=st.lists(st.sampled_from(KEYS), unique=True, max_size=4),
        stop=st.lists(st.sampled_from(KEYS), unique=True, max_size=3),
        how=st.sampled_from(STOPS),
        restored=st.booleans(),
    )
    def master_wants(
        self, run: list[TaskKey], stop: list[TaskKey], how: tuple[str, float | None], restored: bool
    ) -> None:
        self.revision += 1
        self.ordinal += restored
        wanted = desired(
            self.revision,
            [TASKS[known] for known in run],
            [StopTask(known, *how) for known in stop if known not in run],
            history=f"h{self.ordinal}",
            ordinal=self.ordinal,
        )
        self.hear(wanted.stop)
        self.poll(wanted)
        assert opened(self.state.wire_report(session=0, sequence=0)).generation == wanted.generation
        self.forget_probe_report()

    @precondition(lambda self: any(inc.phase in ("up", "stopping") for inc in self.state.incarnations()))
    @rule(data=st.data(), how=st.sampled_from(STOPS))
    def master_stops_what_runs(self, data: st.DataObject, how: tuple[str, float | None]) -> None:
        running = [inc.key for inc in self.state.incarnations() if inc.phase in ("up", "stopping")]
        known = data.draw(st.sampled_from(sorted(running)))
        self.revision += 1
        wanted = desired(
            self.revision,
            [task for task in self.in_force.run if task.key != known],
            [*(stop for stop in self.in_force.stop if stop.key != known), StopTask(known, *how)],
            history=f"h{self.ordinal}",
            ordinal=self.ordinal,
        )
        self.hear(wanted.stop)
        self.poll(wanted)

    def forget_probe_report(self) -> None:
        """Undo the effect of reading a report in the test, so that no end counts as reported to the master."""
        for inc in self.state.incarnations():
            if inc.end_report == (0, 0):
                inc.end_report = None

    @precondition(lambda self: self.remembered.desired is not None and self.revision > 1)
    @rule(age=st.integers(1, 5), data=st.data())
    def a_late_desired_state_comes(self, age: int, data: st.DataObject) -> None:
        before = self.in_force
        run = data.draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=3))
        late = desired(
            self.revision - age, [TASKS[known] for known in run], history=before.history_id, ordinal=self.ordinal
        )
        self.poll(late)
        assert self.in_force is before, "an older desired state came into force"

    @rule()
    def shard_polls(self) -> None:
        self.poll(None)

    @rule()
    def report_is_sent(self) -> None:
        report = opened(self.state.wire_report(session=self.session, sequence=self.sequence))
        assert report.tasks == [
            msgspec.structs.replace(inc.report(expected=self.state.listed(inc.key), address=""), usage=inc.usage)
            for inc in self.state.incarnations()
        ]
        reported = {task.key: task for task in report.tasks}
        for known, presence in self.kept.items():
            assert known in reported, f"{known} is on the machine and not in the report"
            if presence.exit is None:
                continue
            assert reported[known].exit is not None, f"the end of {known} is not reported"
        for task in report.tasks:
            if task.phase == "ended":
                self.told.setdefault(task.key, self.sequence)

    @rule()
    def connection_is_lost(self) -> None:
        self.session, self.sequence = self.session + 1, 0
        self.told.clear()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), exit_=st.sampled_from(EXITS))
    def a_task_ends(self, data: st.DataObject, exit_: Exit) -> None:
        known = data.draw(st.sampled_from(sorted(self.running)))
        run = self.running.pop(known)
        self.kept[known] = Presence(TASKS[known], run, self.now, exit_)
        self.news.append(Ended(known, run, exit_))
        # The runtime notices the end at once. Its message may be late, but not later than the steps below.
        self.take(Ended(known, run, exit_))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_start_fails(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(sorted(self.running)))
        run = self.running.pop(known)
        self.kept[known] = Presence(TASKS[known], run, self.now, Exit(EndCause.START_FAILED, self.now))
        self.take(StartRefused(known, run, "no such file"))

    @precondition(lambda self: self.installing)
    @rule(data=st.data(), ok=st.booleans())
    def an_installation_ends(self, data: st.DataObject, ok: bool) -> None:
        known = data.draw(st.sampled_from(sorted(self.installing)))
        run = self.installing.pop(known)
        self.take(PackagesInstalled(known, run) if ok else InstallFailed(known, run, "no such package"))

    @rule(known=st.sampled_from(KEYS), run=st.integers(1, 3), ok=st.booleans())
    def an_installation_that_nobody_waits_for_ends(self, known: TaskKey, run: int, ok: bool) -> None:
        if self.installing.get(known) != run:
            self.take(PackagesInstalled(known, run) if ok else InstallFailed(known, run, "late"))

    @precondition(lambda self: self.news)
    @rule(data=st.data(), again=st.booleans())
    def news_arrives(self, data: st.DataObject, again: bool) -> None:
        position = data.draw(st.integers(0, len(self.news) - 1))
        event = self.news[position] if again else self.news.pop(position)
        self.take(event)

    @rule(known=st.sampled_from(KEYS), run=st.integers(1, 3), ok=st.booleans())
    def a_probe_is_answered(self, known: TaskKey, run: int, ok: bool) -> None:
        self.take(ProbeAnswered(known, run, ok))

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 40.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        """Move the clock forward, with a pause at each time at which something is due, as the agent's timer does."""
        end = self.now + seconds
        while (at := self.state.next_wake()) < end:
            self.now = at
            self.take(TimePassed())
        self.now = end
        self.take(TimePassed())

    @rule()
    def the_borglet_dies_and_another_adopts(self) -> None:
        self.news.clear()
        self.installing.clear()
        self.heard.clear()
        self.connection_is_lost()
        # The next Borglet has only the listed stops. It lets all the tasks that they name leave DNS once more.
        self.stops.clear()
        self.terminated.clear()
        if self.remembered.desired is not None:
            self.hear(self.remembered.desired.stop, adopted=True)
        self.open()

    @invariant()
    def the_state_is_valid(self) -> None:
        if hasattr(self, "state"):
            self.state.validate()
            with_processes = {inc.key for inc in self.state.incarnations() if inc.has_processes}
            assert with_processes == set(self.running)
            installing = {
                inc.key: inc.run for inc in self.state.incarnations() if inc.phase == "installing" and not inc.installed
            }
            assert installing == self.installing
            assert self.state.next_wake() > self.now, "something is due and was not done"
            for known in self.running:
                if known not in self.terminated and self.stops.get(known):
                    assert self.now < sigterm_at(self.stops[known]), "still not asked to stop"
                    assert next(i for i in self.state.incarnations() if i.key == known).phase == "stopping"


Borglet.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestBorglet = Borglet.TestCase
