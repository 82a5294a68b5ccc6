"""Tests of the pace at which changed estimates become changes of reservations, and of the number of events."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from quota.vocabulary.resources import CPU, RAM
from scheduling.core.reclamation import pacing
from scheduling.core.reclamation.pacing import REST_S, TOGETHER_S, WASTE_S, ReservationPace
from scheduling.core.reclamation.usage_history import KINDS, MIB, Reservations, Samples, UsageHistory
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.reclamation_presets import MEDIUM, OFF, Preset
from scheduling.core.vocabulary.requirement import split_task_id, task_id
from tests.builders import GIB, World, vector

EVERY_S = 5.0


class Cell:
    """A cell of one-task jobs, with an estimator of reservations and a pace that limits how often they change.

    `used`: what each task uses. `changes`: (time, number of tasks) of each event that changes reservations.
    """

    def __init__(self, tasks: int = 1) -> None:
        self.world = World().machine("m1", cpu=10**8, ram=2**50, disk=2**50)
        self.names = [f"j{n}" for n in range(tasks)]
        for name in self.names:
            self.world.job(name, cpu=1000, ram=GIB).place(name, 0, on="m1")
        self.history, self.pace = UsageHistory(), ReservationPace()
        self.used = np.tile([200, 256 * MIB, 0], (tasks, 1))
        self.preset: Preset = MEDIUM
        self.now = 0.0
        self.changes: list[tuple[float, int]] = []

    def look(self) -> None:
        tasks = self.world.state.tasks
        ids = np.array([task_id(self.world.jobs[name].job_id, 0) for name in self.names])
        incarnations = np.array([self.world.task(name, 0).incarnation for name in self.names], dtype=np.int32)
        samples = Samples(ids, incarnations, self.used.copy())
        self.now += EVERY_S
        found = self.history.look(tasks, samples, self.preset, passed_s=EVERY_S)
        due = self.pace.due(tasks, samples, found, passed_s=EVERY_S)
        chosen = np.flatnonzero((found.raised | found.lowered) & due)
        if not len(chosen):
            return
        slots = found.slots[chosen]
        wanted = tasks.shapes.limit[tasks.shape[slots]].copy()
        wanted[:, : len(KINDS)] = found.wanted[chosen]
        self.world.send(
            events.ReservationsSet(
                tasks=tuple(map(split_task_id, tasks.id[slots].tolist())),
                reservations=tuple(map(tuple, wanted.tolist())),
            )
        )
        self.changes.append((self.now, len(chosen)))

    def after(self, seconds: float) -> Cell:
        for _ in range(round(seconds / EVERY_S)):
            self.look()
        return self

    def reserved(self, number: int = 0) -> list[int]:
        tasks = self.world.state.tasks
        slot = tasks.jobs[self.world.jobs[self.names[number]].job_id].tasks[0]
        return [int(amount) for amount in tasks.reservation[slot]]


def test_a_reservation_far_above_the_usage_is_lowered_in_few_large_steps() -> None:
    cell = Cell().after(3600)
    assert 250 <= cell.reserved()[CPU] <= 250 + 60
    assert 2 <= len(cell.changes) <= 6
    assert cell.changes[0][0] <= REST_S + 400
    gaps = np.diff([at for at, _ in cell.changes])
    assert gaps.min() >= REST_S


def test_the_last_step_follows_within_half_an_hour() -> None:
    cell = Cell().after(1800)
    cell.used[0, CPU] = 148  # wants 185, which is 65 less than before
    cell.after(WASTE_S / 0.05 + 600 + TOGETHER_S)
    last = cell.changes[-1][0]
    assert cell.reserved()[CPU] <= 185 + 50
    cell.after(1800)
    assert cell.changes[-1][0] == last


def test_usage_above_the_reservation_raises_it_at_once_in_a_quiet_cell() -> None:
    cell = Cell(3).after(3600)
    cell.used[0, :2] = 600, 600 * MIB
    cell.look()
    assert (cell.reserved(0)[CPU], cell.reserved(0)[RAM]) == (750, 750 * MIB)
    cell.used[1, CPU] = 700
    cell.look()
    cell.used[2, CPU] = 800
    cell.look()
    assert cell.reserved(1)[CPU] < 400  # the change waits for others
    cell.after(TOGETHER_S - 10)
    assert (cell.reserved(1)[CPU], cell.reserved(2)[CPU]) == (875, 1000)
    assert [number for _, number in cell.changes[-2:]] == [1, 2]


def test_many_changes_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "MANY", 2)
    cell = Cell(4).after(3600)
    cell.used[0, CPU] = 600
    cell.look()
    cell.used[1:3, CPU] = 700
    cell.look()
    assert cell.reserved(1)[CPU] == cell.reserved(2)[CPU] == 875


def test_bursts_cost_fewer_changes_than_without_a_pace() -> None:
    paced, plain = Cell(), Cell()
    plain.pace = _NoPace()
    for cell in (paced, plain):
        cell.after(3600)
        cell.changes = []
        for _ in range(12):
            cell.used[0, CPU] = 800
            cell.after(60)
            cell.used[0, CPU] = 200
            cell.after(840)
    assert len(paced.changes) * 5 / 2 <= len(plain.changes)


def test_off_gives_limits_back_with_the_next_changes() -> None:
    cell = Cell().after(3600)
    cell.used[0, CPU] = 600
    cell.look()
    cell.preset = OFF  # while the reservation rests
    cell.after(TOGETHER_S)
    assert cell.reserved() == list(vector(cpu=1000, ram=GIB))


def test_a_new_incarnation_does_not_wait_for_the_rest_of_the_old_one() -> None:
    cell = Cell().after(3600)
    cell.world.evict("j0", 0, gone=True).place("j0", 0, on="m1")
    placed = cell.now
    cell.after(1200)
    assert placed + 300 < next(at for at, _ in cell.changes if at > placed) < placed + 460


def test_a_negative_time_is_rejected() -> None:
    cell = Cell()
    found = cell.history.look(cell.world.state.tasks, Samples.none(), MEDIUM, passed_s=0.0)
    with pytest.raises(ValueError, match="passed_s is -1; give a number of seconds that is not negative"):
        cell.pace.due(cell.world.state.tasks, Samples.none(), found, passed_s=-1.0)
    assert not cell.pace.due(cell.world.state.tasks, Samples.none(), found, passed_s=0.0).any()


class _NoPace(ReservationPace):
    """A pace without delay: each change is written as soon as it matters."""

    def due(self, tasks: object, samples: object, found: Reservations, *, passed_s: float) -> np.ndarray:
        return np.ones(len(found.slots), dtype=np.bool_)


def test_only_the_verdict_of_the_estimate_is_paced() -> None:
    """Estimate reservations that are neither raised nor lowered. None may be written, however much time passed."""
    cell = Cell()
    tasks = cell.world.state.tasks
    found = cell.history.look(tasks, Samples.none(), MEDIUM, passed_s=EVERY_S)
    held = dataclasses.replace(found, raised=np.zeros(1, np.bool_), lowered=np.zeros(1, np.bool_))
    assert not cell.pace.due(tasks, Samples.none(), held, passed_s=10_000.0).any()
