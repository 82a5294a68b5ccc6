"""A session with a simulated cell: steps forwards and backwards, conditions, and branches that are compared.

    main ──●────●────●────► now          ● snapshots: whole copies of the simulation
                └─ branch `aggressive` ─► a copy with other settings

A step backwards takes the last snapshot before the target, and runs forwards from there. The result is exact, because a
simulation is deterministic.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduling.simulator.sessions.changes import change
from scheduling.simulator.sessions.conditions import Condition
from scheduling.simulator.simulation import Simulation

SNAPSHOT_EVERY = 20_000
"""Number of steps between two snapshots. It doubles each time a branch has too many snapshots."""

MOST_SNAPSHOTS = 12
MAIN = "main"


@dataclass(slots=True)
class _Snapshot:
    simulation: Simulation
    pinned: bool = False  # the state was changed by hand, so no earlier snapshot leads to it


@dataclass(slots=True)
class Branch:
    """One branch of a session. `about`: the changes that were made in it. `every`: the number of steps between two
    snapshots.
    """

    simulation: Simulation
    about: str = ""
    every: int = SNAPSHOT_EVERY
    _first: int = 0
    _snapshots: list[_Snapshot] = field(default_factory=list)
    # For each step since the beginning: how many events and passes there were after it.
    _counts: array[int] = field(default_factory=lambda: array("q"))
    _passed: array[int] = field(default_factory=lambda: array("q"))

    def __post_init__(self) -> None:
        self._first = self.simulation.steps
        self.snapshot(pinned=True)

    def snapshot(self, *, pinned: bool = False) -> None:
        """Keep a copy of the present state. `pinned`: the state was changed by hand, so this snapshot is never dropped,
        and later snapshots, which the change has made wrong, are dropped.
        """
        steps = self.simulation.steps
        if pinned:
            self._snapshots = [one for one in self._snapshots if one.simulation.steps <= steps]
            del self._counts[steps - self._first :], self._passed[steps - self._first :]
        elif any(one.simulation.steps >= steps for one in self._snapshots):
            return
        self._snapshots.append(_Snapshot(self.simulation.copy(), pinned))
        loose = [one for one in self._snapshots if not one.pinned]
        if len(loose) > MOST_SNAPSHOTS:
            dropped = {id(one) for one in loose[::2]}
            self._snapshots = [one for one in self._snapshots if id(one) not in dropped]
            self.every *= 2

    def step(self) -> None:
        """Process one item of the simulation's queue, such as an arrival or a pass. Raises `IndexError` if the queue is
        empty and nothing more will happen.
        """
        simulation = self.simulation
        simulation.step()
        if len(self._counts) < simulation.steps - self._first:
            self._counts.append(simulation.cell.journal.count)
            self._passed.append(simulation.passes)
        if simulation.steps % self.every == 0:
            self.snapshot()

    def forwards(self, *, events: int = 0, passes: int = 0, seconds: float = 0.0) -> None:
        """Run forwards: until `events` more items of the queue have caused events, until `passes` more passes have
        taken place, or for `seconds`. Stop earlier if nothing more will happen.
        """
        simulation = self.simulation
        for _ in range(events):
            before = simulation.cell.journal.count
            self._advance(lambda: simulation.cell.journal.count > before)  # noqa: B023 - called at once
        if passes:
            target = simulation.passes + passes
            self._advance(lambda: simulation.passes >= target)
        if seconds:
            until = simulation.now + seconds
            while simulation.next_at() <= until:
                self.step()
            simulation.run(until)

    def backwards(self, *, events: int = 0, passes: int = 0, seconds: float = 0.0) -> None:
        """Run backwards: return to the state before the last `events` items of the queue that caused events, before the
        last `passes` passes, or to `seconds` ago. The earliest possible state is the beginning of the branch.
        """
        simulation = self.simulation
        if events:
            steps = simulation.steps - self._first
            for _ in range(events):
                # One item can have several events. The item after these steps is the last one that has any.
                steps = bisect.bisect_left(self._counts, self._counts[steps - 1]) if steps else 0
            self._return_to_step(steps)
        if passes:
            self._return_to_step(bisect.bisect_right(self._passed, self.simulation.passes - passes))
        if seconds:
            until = max(simulation.now - seconds, self._snapshots[0].simulation.now)
            self._return_to(lambda one: one.now <= until, lambda one: one.next_at() <= until)
            self.simulation.run(until)

    def until(self, condition: Condition, *, at_most_s: float) -> bool:
        """Run until the condition holds. Return False if it did not hold within `at_most_s` seconds."""
        end = self.simulation.now + at_most_s
        while not condition.holds(self.simulation):
            if self.simulation.next_at() > end:
                self.simulation.run(end)
                return condition.holds(self.simulation)
            self.step()
        self.simulation.cell.flush()
        return True

    def _return_to_step(self, since_first: int) -> None:
        steps = self._first + since_first
        self._return_to(lambda one: one.steps <= steps, lambda one: one.steps < steps)

    def _advance(self, enough: Callable[[], bool]) -> None:
        while not enough() and self.simulation.next_at() != float("inf"):
            self.step()
        self.simulation.cell.flush()

    def _return_to(self, before: Callable[[Simulation], bool], early: Callable[[Simulation], bool]) -> None:
        """Replace the simulation by a copy of the last snapshot for which `before` is true. Then process items of its
        queue while `early` is true.
        """
        fitting = [one for one in self._snapshots if before(one.simulation)] or self._snapshots[:1]
        self.simulation = fitting[-1].simulation.copy()
        while early(self.simulation):
            self.simulation.step()
        self.simulation.cell.flush()


class Session:
    """A simulated cell with its branches. The first branch is `main`."""

    def __init__(self, simulation: Simulation) -> None:
        self.branches: dict[str, Branch] = {MAIN: Branch(simulation)}

    def branch(self, name: str) -> Branch:
        """Return a branch. Raises `LookupError` that names the known branches."""
        try:
            return self.branches[name]
        except KeyError:
            known = ", ".join(self.branches)
            raise LookupError(f"branch {name!r} does not exist; the branches are {known}") from None

    def fork(self, name: str, *, source: str = MAIN, changes: Mapping[str, str] | None = None) -> Branch:
        """Copy the branch `source` as the branch `name`, with changed settings. The figures of both branches are set to
        zero, so that they can be compared. Raises `ValueError` if the name exists or a change is wrong.
        """
        if name in self.branches:
            raise ValueError(f"branch {name!r} already exists; choose another name")
        origin = self.branch(source)
        copied = origin.simulation.copy()
        for key, value in (changes or {}).items():
            change(copied, key, value)
        for simulation in (copied, origin.simulation):
            simulation.forget_figures()
        origin.snapshot(pinned=True)
        about = ", ".join(f"{key}={value}" for key, value in (changes or {}).items())
        self.branches[name] = Branch(copied, about)
        return self.branches[name]

    def diff(self, first: str, second: str) -> list[tuple[str, float, float]]:
        """Return one row per figure: its name, and its value in both branches."""
        return compare(self.branch(first).simulation, self.branch(second).simulation)


def compare(first: Simulation, second: Simulation) -> list[tuple[str, float, float]]:
    """Return one row per figure of two simulations: its name, and both values."""
    left, right = first.cell.keeper.figures.as_rows(), second.cell.keeper.figures.as_rows()
    names = list(left) + [name for name in right if name not in left]
    return [(name, left.get(name, 0.0), right.get(name, 0.0)) for name in names]
