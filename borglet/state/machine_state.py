"""The actual and the desired state of one machine. All decisions of the Borglet use them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from borglet.messages import AllocReport, Desired, Health, Phase, RunTask, StopTask, TaskKey
from borglet.state import stopping
from borglet.state.health_watch import HealthWatch
from borglet.state.incarnations import Incarnation
from borglet.state.instructions import GivenUp, HoldAllocs, Instruction, Remembered
from borglet.state.phases import PhaseStep
from borglet.state.quarantine import is_new_history, stays_in_quarantine


class Holdings:
    """The actual and the desired state of one machine. `version` increases with each change that the Borglet must
    report immediately.
    """

    def __init__(self) -> None:
        self.version = 0
        self.by_key: dict[TaskKey, Incarnation] = {}
        self.desired: Desired | None = None
        self.pending: Desired | None = None  # accepted, but not yet saved
        self.run: dict[TaskKey, RunTask] = {}
        self.stop: dict[TaskKey, StopTask] = {}
        self.allocs: tuple[AllocReport, ...] = ()

    # -- reading

    @property
    def history_id(self) -> str:
        return self.desired.history_id if self.desired is not None else ""

    @property
    def probing(self) -> bool:
        """Return whether a task waits for the answer to its first health probe."""
        return any(
            inc.watch is not None and inc.watch.due == math.inf and inc.watch.health is Health.UNKNOWN
            for inc in self.by_key.values()
        )

    def packages_in_use(self) -> set[str]:
        """Return the digests of the packages that tasks on this machine need now or will need at their next start."""
        return {
            package.digest
            for inc in self.by_key.values()
            if inc.phase is not Phase.ENDED
            for package in inc.task.packages
        }

    def next_wake(self) -> float:
        """Return the time at which the caller must send the next event `TimePassed`. The result is infinite if there is
        none.
        """
        return min((self._wake_of(inc) for inc in self.by_key.values()), default=math.inf)

    def _wake_of(self, inc: Incarnation) -> float:
        at = math.inf
        if inc.phase is Phase.BACKOFF and inc.key in self.run and (inc.task.needs_preparation or not self.blocked(inc)):
            at = inc.start_at
        elif inc.phase is Phase.UP:
            at = inc.watch.due if inc.watch is not None else math.inf
            if inc.key in self.run:
                at = min(at, stopping.run_until(inc))
        if inc.stop_at is not None:
            at = min(at, inc.stop_at)
        return at

    def listed(self, key: TaskKey) -> bool:
        return key in self.run or key in self.stop

    def blocked(self, inc: Incarnation) -> bool:
        """Return whether `inc` must wait for the end of another incarnation: of the same task, or of a task in
        `waits_for`.
        """
        for other in self.by_key.values():
            same_task = other.key.job == inc.key.job and other.key.index == inc.key.index
            if other is not inc and (same_task or other.key in inc.task.waits_for) and self._holds(other):
                return True
        return False

    def _holds(self, inc: Incarnation) -> bool:
        """Return whether incarnations that wait for `inc` must still wait, because it has processes or will start
        again.
        """
        again = inc.ran and inc.phase in (Phase.BACKOFF, Phase.INSTALLING)
        return inc.has_processes or (again and inc.key in self.run)

    def may_be_forgotten(self, inc: Incarnation) -> bool:
        """Return whether the Borglet may delete its data about `inc`: the master has received the report of its end,
        and no longer lists it.

        While a desired state is being saved, the result is False, because that state may list `inc` again.
        """
        return inc.acknowledged and inc.dropped and not inc.quarantined and self.pending is None

    def remembered(self, desired: Desired | None) -> Remembered:
        """Return the data that a restarted Borglet needs, to be saved on the disk. `desired`: the new desired state,
        which is part of the data. The Borglet saves the data before it applies `desired`.
        """
        listed: set[TaskKey] = set()
        new_history = False
        if desired is not None:
            listed = {task.key for task in desired.run} | {stop.key for stop in desired.stop}
            new_history = is_new_history(self.desired, desired)
        return Remembered(
            desired,
            given_up=[
                GivenUp(inc.key, inc.run, inc.exit)
                for inc in self.by_key.values()
                if inc.given_up and inc.exit is not None and inc.key in listed
            ],
            quarantined=[
                inc.key
                for inc in self.by_key.values()
                if (inc.ran or inc.phase not in (Phase.ASSIGNED, Phase.INSTALLING))
                and stays_in_quarantine(inc, listed=inc.key in listed, new_history=new_history)
            ],
        )

    # -- changing

    def assign(self, task: RunTask, *, now: float) -> None:
        inc = Incarnation(task)
        inc.step(PhaseStep.ASSIGN, now=now)
        self.by_key[task.key] = inc

    def put_in_force(self, desired: Desired | None) -> None:
        self.desired = desired
        self.run = {task.key: task for task in desired.run} if desired is not None else {}
        self.stop = {stop.key: stop for stop in desired.stop} if desired is not None else {}

    def hold_allocs(self, out: list[Instruction]) -> None:
        """If necessary, append to `out` an instruction that creates the folders of the allocs in the desired state, and
        removes the folders of the allocs that must stop. The folders of other allocs stay.
        """
        wanted = tuple(self.desired.allocs) if self.desired is not None else ()
        dropped = (keys_of(self.allocs) & self.stop.keys()) - {alloc.key for alloc in wanted}
        if wanted or dropped:
            out.append(HoldAllocs(wanted, frozenset(dropped)))

    # -- invariants

    def validate(self) -> None:
        """Check that the state is consistent: for example, that at most one incarnation of a task has processes. Raises
        AssertionError if it is not; the text names the incarnation.
        """
        holders: dict[tuple[str, int], TaskKey] = {}
        for key, inc in self.by_key.items():
            story = f"{key} in {inc.phase}: {'; '.join(inc.story)}"
            assert key == inc.key, story
            assert inc.phase is not None, story
            if inc.has_processes:
                other = holders.setdefault((key.job, key.index), key)
                assert other == key, f"two incarnations with processes: {other} and {story}"
            assert (inc.phase is Phase.ASSIGNED) == (inc.run == 0 and inc.phase is not Phase.ENDED), story
            assert inc.phase is not Phase.ENDED or inc.exit is not None, story
            assert inc.phase is not Phase.STOPPING or inc.stop_notice_s is not None, story
            assert inc.stop_at is None or inc.phase is Phase.STOPPING, story
            assert not inc.leaving or (inc.was_up and inc.stop_at is not None), story
            assert inc.watch is None or inc.has_processes, story
            assert inc.phase not in (Phase.ASSIGNED, Phase.INSTALLING) or key in self.run, story
            assert not (inc.quarantined and self.listed(key)), story
        for key in self.run:
            assert key in self.by_key, f"{key} is in run and unknown"
        for key in self.stop:
            known = self.by_key.get(key)
            assert known is None or known.phase in (Phase.STOPPING, Phase.ENDED), f"{key} is not stopped"


def watch(inc: Incarnation, *, now: float) -> None:
    """Start the health checks of a task's present run, if the task declares a health check."""
    inc.watch = HealthWatch(since=inc.started_at, due=now) if inc.task.health is not None else None


def keys_of(allocs: Iterable[AllocReport]) -> set[TaskKey]:
    return {alloc.key for alloc in allocs}
