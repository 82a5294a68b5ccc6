"""Property tests of the limit on evictions when many machines are lost: it holds in whatever order they fail."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from scheduling.policy.brake_rules import (
    ALWAYS_BELIEVED,
    CALM_S,
    BrakeState,
    Bucket,
    Extent,
    few,
    lost_bucket,
    lost_rate,
    lost_state,
)
from scheduling.policy.cell_settings import CellSettings

EACH = 10
SETTINGS = CellSettings()
MOVING = (BrakeState.BOUNDED, BrakeState.RELEASED)


@dataclass
class Cell:
    """A cell whose machines fail and return. It applies the eviction limit in steps of one second, as the master does.

    `tasks`: number of tasks by machine. `gone`: the machines that do not answer.
    """

    machines: int
    tasks: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    state: BrakeState = BrakeState.OPEN
    bucket: Bucket = field(default_factory=lambda: Bucket(0.0, 0.0))
    calm_since: float | None = None
    now: float = 0.0

    def __post_init__(self) -> None:
        self.tasks = dict.fromkeys(range(self.machines), EACH)

    def second(self) -> int:
        """Advance the clock by one second, evict what the limit allows, and return the number of evicted tasks."""
        self.now += 1.0
        extent = Extent(self.machines, len(self.gone), self.machines * EACH)
        if self.state is BrakeState.OPEN or not few(extent, SETTINGS):
            self.calm_since = None
        else:
            self.calm_since = self.now if self.calm_since is None else self.calm_since
        calm_s = 0.0 if self.calm_since is None else self.now - self.calm_since
        before, self.state = self.state, lost_state(extent, SETTINGS, self.state, calm_s=calm_s)
        if before is BrakeState.OPEN:
            self.bucket = Bucket(0.0, self.now)
        self.bucket = lost_bucket(self.bucket, self.now, lost_rate(extent, SETTINGS))
        allowed = 10**9 if self.state is BrakeState.OPEN else 0
        if self.state in MOVING:
            allowed = int(self.bucket.level)
        left = 0
        for machine in sorted(self.gone):
            moved = min(self.tasks[machine], allowed - left)
            self.tasks[machine] -= moved
            left += moved
        if self.state is not BrakeState.OPEN:
            self.bucket = Bucket(self.bucket.level - left, self.bucket.at)
        return left


@given(machines=st.integers(8, 60), share=st.floats(0.0, 1.0), cut_s=st.integers(1, 90), back_each_s=st.integers(0, 3))
def test_a_partition_moves_no_more_than_the_rate_until_the_last_is_back(
    machines: int, share: float, cut_s: int, back_each_s: int
) -> None:
    cell = Cell(machines)
    cut = list(range(int(share * machines)))
    cell.gone = set(cut)
    believed = few(Extent(machines, len(cut), machines * EACH), SETTINGS)
    left = sum(cell.second() for _ in range(cut_s))
    for machine in cut:
        cell.gone.discard(machine)
        left += sum(cell.second() for _ in range(back_each_s))
    seconds = cell.now
    if believed:
        assert left == len(cut) * EACH
        return
    rate = lost_rate(Extent(machines, len(cut), machines * EACH), SETTINGS)
    # Machines that stay away are believed to be lost once only a few of them are left.
    stragglers = max(ALWAYS_BELIEVED, int(SETTINGS.believed_share * machines))
    slow = back_each_s * stragglers > CALM_S
    assert left <= rate * seconds + 1 + (stragglers * EACH if slow else 0)


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 19)), max_size=40), hold=st.booleans())
def test_where_most_are_gone_nothing_moves(steps: list[tuple[bool, int]], hold: bool) -> None:
    cell = Cell(20)
    cell.gone = set(range(12))
    for vanish, machine in steps:
        if vanish:
            cell.gone.add(machine)
        elif len(cell.gone) > 11:
            cell.gone.discard(machine)
        if hold and cell.state is BrakeState.HELD:
            cell.state = BrakeState.KEPT
        assert cell.second() == 0


@given(number=st.integers(1, ALWAYS_BELIEVED), machines=st.integers(ALWAYS_BELIEVED + 1, 100))
def test_few_that_die_lose_all_their_tasks_at_once(number: int, machines: int) -> None:
    cell = Cell(machines)
    cell.gone = set(range(number))
    assert cell.second() == number * EACH
