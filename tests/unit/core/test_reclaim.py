"""Tests of reservations (§5.5), the estimates of future usage, and of the feedback between them and usage."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from quota.vocabulary.resources import ACCELERATORS, CPU, PORTS, RAM
from scheduling.core.reclamation.usage_history import KINDS, MIB, Reservations, Samples, UsageHistory, most_urgent
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.reclamation_presets import AGGRESSIVE, BASELINE, MEDIUM, OFF, PRESETS, Preset
from scheduling.core.vocabulary.requirement import Requirement, task_id
from tests.builders import GIB, World, needs, vector
from tests.unit.core.twins_of_reclaim import SlowHistory

EVERY_S = 5.0
LIMIT = {"cpu": 1000, "ram": GIB}


@dataclass
class Cell:
    """A cell whose reservations follow usage (§5.5).

    Each task uses what the last call of `use` set, until `silent` is called.
    """

    preset: Preset = MEDIUM
    world: World = field(default_factory=lambda: World().machine("m1").machine("m2"))
    history: UsageHistory = field(default_factory=UsageHistory)
    used: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    written: int = 0  # reservations that reached the journal

    def runs(self, name: str, *, on: str = "m1", **asks: int) -> Cell:
        self.world.job(name, **(asks or LIMIT)).place(name, 0, on=on)
        return self

    def use(self, name: str, *, cpu: int = 0, ram: int = 0, disk: int = 0) -> Cell:
        self.used[name, 0] = (cpu, ram, disk)
        return self

    def silent(self, name: str) -> Cell:
        del self.used[name, 0]
        return self

    def samples(self) -> Samples:
        found = list(self.used)
        rows = [self.world.task(*key) for key in found]
        return Samples(
            np.array([task_id(self.world.jobs[name].job_id, index) for name, index in found], dtype=np.int64),
            np.array([row.incarnation for row in rows], dtype=np.int32),
            np.array([self.used[key] for key in found], dtype=np.int64).reshape(len(found), len(KINDS)),
        )

    def look(self, *, passed_s: float = EVERY_S) -> None:
        """Estimate all reservations once and commit the important changes. `passed_s`: seconds since the last time."""
        tasks = self.world.state.tasks
        fixed = np.zeros(len(tasks.job_at), dtype=np.bool_)
        for name in self.fixed:
            fixed[tasks.jobs[self.world.jobs[name].job_id].slot] = True
        found = self.history.look(tasks, self.samples(), self.preset, passed_s=passed_s, fixed_jobs=fixed)
        for k in most_urgent(found, at_most=1000):
            slot = found.slots[k]
            name, index = next(
                (n, i)
                for n, i in self.world.in_state("running")
                if task_id(self.world.jobs[n].job_id, i) == tasks.id[slot]
            )
            row = self.world.task(name, index)
            row.reservation = (*found.wanted[k].tolist(), *row.requirement.limit[len(KINDS) :])
            pair = (self.world.jobs[name].job_id, index)
            self.world.send(events.ReservationsSet(tasks=(pair,), reservations=(row.reservation,)))
            self.written += 1

    def after(self, seconds: float) -> Cell:
        for _ in range(round(seconds / EVERY_S)):
            self.look()
        return self

    def reserved(self, name: str = "web") -> tuple[int, ...]:
        tasks = self.world.state.tasks
        job = tasks.jobs[self.world.jobs[name].job_id]
        return tuple(tasks.reservation[job.tasks[0]].tolist())


@pytest.fixture
def cell() -> Cell:
    return Cell().runs("web").use("web", cpu=200, ram=256 * MIB)


def test_it_begins_at_the_limit_and_stays_there_for_300_s(cell: Cell) -> None:
    cell.after(300)
    assert cell.reserved() == vector(**LIMIT)
    assert cell.written == 0


def test_then_it_decays_slowly_to_usage_plus_a_margin(cell: Cell) -> None:
    cell.after(300 + MEDIUM.half_life_s)
    cpu = cell.reserved()[CPU]
    half = 250 + (1000 - 250) / 2
    assert half <= cpu <= half + 0.05 * 1000 + 10
    cell.after(8 * MEDIUM.half_life_s)
    assert 250 <= cell.reserved()[CPU] <= 300
    assert 320 * MIB <= cell.reserved()[RAM] <= 320 * MIB + GIB // 20


def test_it_jumps_up_at_once_when_usage_exceeds_it(cell: Cell) -> None:
    cell.after(3600)
    before = cell.reserved()
    cell.use("web", cpu=200, ram=600 * MIB).look()
    assert cell.reserved()[RAM] == 750 * MIB
    assert cell.reserved()[CPU] <= before[CPU]


def test_it_is_never_above_the_limit_even_when_usage_is(cell: Cell) -> None:
    cell.after(3600)
    cell.use("web", cpu=5000, ram=2 * GIB).look()
    assert cell.reserved() == vector(**LIMIT)
    written = cell.written
    cell.after(600)
    assert cell.written == written


def test_it_is_never_below_a_floor_nor_is_the_floor_above_the_limit() -> None:
    cell = Cell().runs("idle").runs("tiny", cpu=5, ram=MIB)
    cell.use("idle").use("tiny").after(20_000)
    assert 10 <= cell.reserved("idle")[CPU] <= 60
    assert 16 * MIB <= cell.reserved("idle")[RAM] <= 16 * MIB + GIB // 20
    assert cell.reserved("tiny") == vector(cpu=5, ram=MIB)


def test_margins_narrow_from_baseline_to_aggressive_and_medium_is_midway() -> None:
    settled = {}
    for preset in (BASELINE, MEDIUM, AGGRESSIVE):
        cell = Cell(preset).runs("web").use("web", cpu=500, ram=512 * MIB).after(12_000)
        settled[preset.name] = cell.reserved()[CPU]
    assert settled["baseline"] > settled["medium"] > settled["aggressive"] >= 550
    for ours, low, high in zip(MEDIUM.margin, AGGRESSIVE.margin, BASELINE.margin, strict=True):
        assert ours == pytest.approx((low + high) / 2)
    assert set(PRESETS) == {"off", "baseline", "medium", "aggressive"}


def test_off_gives_every_limit_back_at_once(cell: Cell) -> None:
    cell.after(3600)
    assert cell.reserved() != vector(**LIMIT)
    cell.preset = OFF
    cell.silent("web").look()
    assert cell.reserved() == vector(**LIMIT)


def test_a_job_may_switch_it_off_for_itself(cell: Cell) -> None:
    cell.runs("careful").use("careful", cpu=1)
    cell.fixed = {"careful"}
    cell.after(3600)
    assert cell.reserved("careful") == vector(**LIMIT)
    assert cell.reserved("web") != vector(**LIMIT)


def test_accelerators_ports_and_further_resources_are_never_reclaimed() -> None:
    cell = Cell()
    limit = vector(cpu=1000, ram=GIB, accelerators=2000, ports=2)
    cell.world.job("gpu", Requirement(limit)).place("gpu", 0, on="m1", ports=(20000, 20001))
    cell.use("gpu", cpu=1, ram=MIB).after(3600)
    reserved = cell.reserved("gpu")
    assert reserved[CPU] < 1000
    assert (reserved[ACCELERATORS], reserved[PORTS]) == (2000, 2)


def test_prod_and_non_prod_are_estimated_alike() -> None:
    cell = Cell()
    for name, priority in (("prod", 200), ("batch", 101)):
        cell.world.job(name, priority=priority, **LIMIT).place(name, 0, on="m1")
        cell.use(name, cpu=100, ram=64 * MIB)
    cell.after(2000)
    assert cell.reserved("prod") == cell.reserved("batch") != vector(**LIMIT)


# --- the traps of DESIGN §8


def test_throttling_does_not_shrink_the_reservation_that_causes_it(cell: Cell) -> None:
    """Throttle a task to its reservation, although it needs 800 milli-cores. The reservation must rise to 800.

    The samples contain both the CPU that was used and the CPU that was denied.
    """
    cell.after(3600)
    assert cell.reserved()[CPU] < 400
    wants = 800
    for _ in range(400):
        got = min(wants, cell.reserved()[CPU])
        cell.use("web", cpu=got + (wants - got), ram=256 * MIB).look()
    assert cell.reserved()[CPU] >= wants


def test_missing_samples_hold_the_value(cell: Cell) -> None:
    cell.after(900)
    held = cell.reserved()
    cell.silent("web").after(7200)
    assert cell.reserved() == held
    cell.use("web", cpu=200, ram=256 * MIB).look()
    assert cell.reserved()[CPU] >= held[CPU] - 60  # the estimate continues from its value, and does not catch up


def test_a_silent_machine_ages_nobody() -> None:
    cell = Cell().runs("web")
    cell.after(3600)
    cell.use("web", cpu=1).after(250)
    assert cell.reserved() == vector(**LIMIT)


def test_peaks_outlive_the_silence_of_their_machine() -> None:
    cell = Cell().runs("web").use("web", cpu=100, ram=900 * MIB)
    cell.look()
    cell.silent("web").after(7200)
    cell.use("web", cpu=100, ram=100 * MIB).after(1500)
    assert cell.reserved()[RAM] == GIB


def test_a_restart_begins_at_the_limit_again(cell: Cell) -> None:
    cell.after(3600)
    assert cell.reserved() != vector(**LIMIT)
    cell.world.evict("web", 0).place("web", 0, on="m2")
    cell.after(300)
    assert cell.reserved() == vector(**LIMIT)
    cell.after(600)
    assert cell.reserved() != vector(**LIMIT)


def test_samples_of_an_incarnation_that_left_are_not_taken_for_the_new_one(cell: Cell) -> None:
    old = cell.samples()
    cell.world.evict("web", 0).place("web", 0, on="m2")
    found = cell.history.look(cell.world.state.tasks, old, MEDIUM, passed_s=EVERY_S)
    assert found.sample.tolist() == [-1]


def test_a_new_limit_is_where_the_estimate_goes_on_from(cell: Cell) -> None:
    cell.after(3600)
    cell.world.update("web", 0, needs(cpu=4000, ram=4 * GIB))
    cell.look()
    assert cell.reserved()[CPU] > 3900
    cell.after(8 * MEDIUM.half_life_s)
    assert cell.reserved()[CPU] < 500


def test_noise_makes_no_news_once_the_estimate_has_settled(cell: Cell) -> None:
    rng = np.random.default_rng(7)
    cell.after(6000)
    cell.written = 0
    for _ in range(2000):
        cpu, ram = (rng.uniform(0.8, 1.0, 2) * (200, 256 * MIB)).astype(int).tolist()
        cell.use("web", cpu=cpu, ram=ram).look()
    assert cell.written <= 2


def test_a_daily_rhythm_moves_it_without_ringing() -> None:
    """Simulate usage that rises and falls in waves. The reservation must rise only when usage exceeds it."""
    cell = Cell().runs("web")
    last, turns = 0, 0
    for step in range(2880):
        wave = 400 + 300 * np.sin(step / 2880 * 4 * np.pi)
        cell.use("web", cpu=int(wave), ram=256 * MIB).look()
        now = cell.reserved()[CPU]
        assert now >= int(wave)
        turns += now > last > 0
        last = now
    assert turns <= 20  # each rise is a margin: about nine per rising wave


def test_a_master_that_takes_over_keeps_estimates_and_looks_before_it_lowers(cell: Cell) -> None:
    cell.after(1500)
    held = cell.reserved()
    assert held != vector(**LIMIT)
    cell.history = UsageHistory()
    cell.after(300)
    assert cell.reserved() == held
    cell.after(3000)
    assert cell.reserved()[CPU] < held[CPU]


def test_a_long_pause_counts_as_a_short_one(cell: Cell) -> None:
    cell.after(300)
    cell.look(passed_s=100_000)
    assert cell.reserved()[CPU] > 900


def test_history_follows_a_state_that_was_loaded_again(cell: Cell) -> None:
    cell.runs("other").use("other", cpu=100).after(310)
    cell.world.evict("other", 0).end("other", 0)
    cell.world.gone("other", 0, 1)
    cell.runs("third").use("third", cpu=100)
    del cell.used["other", 0]
    fresh = cell.world.from_rows()
    cell.world.state = fresh
    cell.history.follow(fresh.tasks)
    cell.after(MEDIUM.half_life_s)
    assert cell.reserved("web")[CPU] < 750
    assert cell.reserved("third")[CPU] > 800


# --- what reaches the journal


def test_raises_come_first_then_the_largest_drops() -> None:
    cell = Cell().runs("a").runs("b").runs("c")
    cell.use("a", cpu=10, ram=GIB).use("b", cpu=500, ram=GIB).use("c", cpu=100, ram=GIB)
    for _ in range(200):  # the estimate decays, but nothing is committed
        found = cell.history.look(cell.world.state.tasks, cell.samples(), MEDIUM, passed_s=EVERY_S)
    names = {int(cell.world.state.tasks.jobs[row.job_id].tasks[0]): n for n, row in cell.world.jobs.items()}
    assert [names[found.slots[k]] for k in most_urgent(found, at_most=2)] == ["a", "c"]
    cell.world.reserve("b", 0, cpu=100, ram=GIB)
    cell.use("b", cpu=600, ram=GIB)
    found = cell.history.look(cell.world.state.tasks, cell.samples(), MEDIUM, passed_s=EVERY_S)
    assert [names[found.slots[k]] for k in most_urgent(found, at_most=2)] == ["b", "a"]


def test_the_largest_drops_are_those_that_sorting_all_would_find() -> None:
    rng = np.random.default_rng(3)
    number = 500
    kind = rng.integers(0, 3, number)
    found = Reservations(
        slots=np.arange(number),
        wanted=np.zeros((number, 3), dtype=np.int64),
        raised=kind == 2,
        lowered=kind == 1,
        gap=rng.integers(1, 20, number) / 20,
        sample=np.full(number, -1),
    )
    raised = np.flatnonzero(kind == 2).tolist()
    drops = sorted(np.flatnonzero(kind == 1).tolist(), key=lambda k: (-found.gap[k], k))
    for at_most in (0, 1, len(raised), len(raised) + 1, len(raised) + 40, number):
        assert most_urgent(found, at_most=at_most).tolist() == (raised + drops)[:at_most]


def test_bad_input_is_refused() -> None:
    tasks = World().state.tasks
    with pytest.raises(ValueError, match="passed_s is -1"):
        UsageHistory().look(tasks, Samples.none(), MEDIUM, passed_s=-1)
    bad = Samples(np.zeros(2, dtype=np.int64), np.zeros(1, dtype=np.int32), np.zeros((2, 3), dtype=np.int64))
    with pytest.raises(ValueError, match="for 2 samples"):
        UsageHistory().look(tasks, bad, MEDIUM, passed_s=1)


# --- the kernel and its twin


@pytest.mark.parametrize("seed", range(6))
def test_the_kernel_agrees_with_its_slow_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cell = Cell(list(PRESETS.values())[rng.integers(1, 4)])
    cell.world.machine("m1", cpu=10**7, ram=2**50).machine("m2", cpu=10**7, ram=2**50)
    slow = SlowHistory()
    names = [f"j{n}" for n in range(12)]
    for name in names:
        limit = vector(
            cpu=int(rng.choice([0, 4, 1000, 7000])),
            ram=int(rng.integers(0, 4 * GIB)),
            disk=int(rng.choice([0, 10 * GIB])),
        )
        cell.world.job(name, Requirement(limit)).place(name, 0, on="m1")
    cell.fixed = {"j3"}
    for _ in range(250):
        if rng.random() < 0.02:
            cell.preset = list(PRESETS.values())[rng.integers(0, 4)]
        for name in names:
            limit = cell.world.task(name, 0).requirement.limit
            roll = rng.random()
            if roll < 0.1:
                cell.used.pop((name, 0), None)
            elif roll < 0.7:
                share = rng.random(3) * (1.4 if rng.random() < 0.05 else 0.4)
                cell.used[name, 0] = tuple(int(limit[r] * share[r]) for r in KINDS)
            elif roll < 0.71:
                cell.world.evict(name, 0, gone=True).place(name, 0, on="m2")
            elif roll < 0.72:
                cell.world.update(name, 0, Requirement(tuple(2 * amount for amount in limit)))
        passed_s = float(rng.choice([5.0, 5.0, 5.0, 90.0]))
        before = {name: cell.reserved(name) for name in names}
        cell.look(passed_s=passed_s)
        for name in names:
            row = cell.world.task(name, 0)
            wanted, verdict = slow.look(
                (task_id(cell.world.jobs[name].job_id, 0), row.incarnation),
                row.requirement.limit,
                before[name],
                cell.used.get((name, 0)),
                cell.preset,
                passed_s,
                fixed=name in cell.fixed,
            )
            now = cell.reserved(name)
            assert now[: len(KINDS)] == (wanted if verdict != "held" else before[name][: len(KINDS)]), name


def test_samples_are_found_among_many_tasks_by_id_and_incarnation() -> None:
    world = World().machine("m1", cpu=10**9, ram=2**50)
    world.job("many", tasks=3000, **LIMIT)
    for index in range(3000):
        world.place("many", index, on="m1")
    rng = np.random.default_rng(1)
    picked = rng.permutation(4000)[:2000]
    ids = np.array([task_id(world.jobs["many"].job_id, int(i)) for i in picked], dtype=np.int64)
    incarnations = rng.integers(1, 3, 2000).astype(np.int32)
    demand = np.zeros((2000, 3), dtype=np.int64)
    found = UsageHistory().look(world.state.tasks, Samples(ids, incarnations, demand), MEDIUM, passed_s=1)
    slot = dict(zip(world.state.tasks.id[found.slots].tolist(), range(3000), strict=True))
    expected = np.full(3000, -1)
    for s, (identity, incarnation) in enumerate(zip(ids.tolist(), incarnations.tolist(), strict=True)):
        if identity in slot and incarnation == 1:
            expected[slot[identity]] = s
    assert found.sample.tolist() == expected.tolist()
