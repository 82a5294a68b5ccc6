"""What the tasks of a cell use, and how they behave: three kinds of load for the bench `journal`. Pure.

* `services`: usage follows the day, with noise that lasts for minutes and with short bursts. A few tasks fail their
  health check every minute or two, and a few restart again and again.
* `batch`: tasks alternate between busy and idle phases of minutes, with heavy-tailed noise, and their memory grows in
  steps. Fewer tasks flap, and for longer; more tasks restart.
* `google2011`: priorities of the tasks of Google's cell of 2011, with the usage of the simulator, which has the
  means of Google's trace of 2019 and changes every five minutes. Tasks fail as often as in the simulator, and machines
  exchange a package as often as jobs arrived per machine. No rule of coalescing was chosen on this load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from borglet.messages import Health, Phase
from scheduling.simulator.behaviour import Drawn
from tests.bench import google2011

DAY_S = 86_400.0
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How often tasks change. `flapping`, `restarting`: shares of the tasks. `healthy_s`, `unhealthy_s`: mean lengths
    of the phases of a flapping task. `run_s`, `backoff_s`: mean run of a restarting task, and the time until its next
    start. `moves`: how often a machine exchanges one package for another per day.
    """

    flapping: float
    healthy_s: float
    unhealthy_s: float
    restarting: float
    run_s: float
    backoff_s: float
    moves: float


SERVICES = Behaviour(0.02, 60.0, 30.0, 0.01, 120.0, 20.0, 4.0)
BATCH = Behaviour(0.01, 240.0, 90.0, 0.03, 45.0, 60.0, 12.0)
# 672,074 jobs in 29 days on 12,477 machines.
GOOGLE2011 = Behaviour(0.0, 0.0, 0.0, Drawn.failing, Drawn.median_s, 60.0, 672_074 / 29 / 12_477)


@dataclass(slots=True)
class Seen:
    """What a Borglet would report about a task at a moment."""

    phase: Phase = Phase.UP
    health: Health = Health.UNKNOWN
    restarts: int = 0
    exited_at: float = 0.0


_START_S = 3.0


class UnstableTask:
    """A task that restarts again and again: because its check fails (`flapping`), or because it exits."""

    def __init__(self, behaviour: Behaviour, rng: np.random.Generator, *, flapping: bool) -> None:
        self.checked = flapping
        self.seen = Seen(health=Health.HEALTHY if flapping else Health.UNKNOWN)
        self._steps = self._live(behaviour, rng)
        self._until = next(self._steps)

    def at(self, now: float) -> Seen:
        while self._until <= now:
            self._until += next(self._steps)
        return self.seen

    def _live(self, behaviour: Behaviour, rng: np.random.Generator) -> Iterator[float]:
        """Change `seen` again and again, and yield each time for how many seconds it stays as it is."""
        while True:
            if self.checked:
                self.seen.health = Health.HEALTHY
                yield rng.exponential(behaviour.healthy_s)
                self.seen.health = Health.UNHEALTHY
                yield rng.exponential(behaviour.unhealthy_s)
            else:
                yield rng.exponential(behaviour.run_s)
            self.seen.phase, self.seen.health = Phase.BACKOFF, Health.UNKNOWN
            self.seen.exited_at = self._until
            yield behaviour.backoff_s
            self.seen.phase, self.seen.restarts = Phase.STARTING, self.seen.restarts + 1
            yield _START_S
            self.seen.phase = Phase.UP
            if self.checked:
                yield _START_S


class ServiceUsage:
    """Usage of N services as shares of their limits. `step` returns [N, 3] for the next moment, `every_s` later."""

    def __init__(self, tasks: int, rng: np.random.Generator, every_s: float) -> None:
        self._rng, self._every_s, self._now = rng, every_s, 0.0
        self._mean = np.column_stack([rng.beta(1.7, 2.3, tasks), rng.beta(2.5, 1.5, tasks)])
        self._phase = rng.uniform(0, 2 * np.pi, tasks) * 0.15
        self._swing = rng.uniform(0.1, 0.5, tasks)
        self._noise = np.zeros((tasks, 2))
        self._burst_until = np.zeros(tasks)
        self._burst = np.ones(tasks)
        self._disk = rng.uniform(0.1, 0.6, tasks)

    def step(self) -> Floats:
        rng, dt = self._rng, self._every_s
        self._now += dt
        keep = np.exp(-dt / np.array([120.0, 900.0]))
        spread = np.array([0.12, 0.04])
        self._noise = self._noise * keep + rng.normal(0, 1, self._noise.shape) * spread * np.sqrt(1 - keep**2)
        starts = rng.random(len(self._burst)) < dt / 5400.0
        self._burst_until[starts] = self._now + rng.exponential(120.0, int(starts.sum()))
        self._burst[starts] = rng.uniform(1.2, 2.5, int(starts.sum()))
        burst = np.where(self._burst_until > self._now, self._burst, 1.0)
        wave = 1 + self._swing * np.sin(2 * np.pi * self._now / DAY_S + self._phase)
        jitter = rng.uniform(0.9, 1.1, len(burst))
        cpu = self._mean[:, 0] * wave * burst * (1 + self._noise[:, 0]) * jitter
        ram = self._mean[:, 1] * (1 + 0.2 * (wave - 1)) * (1 + self._noise[:, 1])
        return np.column_stack([np.clip(cpu, 0.0, 1.3), np.clip(ram, 0.01, 1.0), self._disk])


class BatchUsage:
    """Usage of N batch tasks, like `ServiceUsage`."""

    def __init__(self, tasks: int, rng: np.random.Generator, every_s: float) -> None:
        self._rng, self._every_s = rng, every_s
        self._busy = rng.random(tasks) < 0.5
        self._level = rng.beta(1.4, 2.6, tasks)
        self._ram = rng.beta(1.4, 2.6, tasks) * 0.5
        self._disk = rng.uniform(0.05, 0.5, tasks)

    def step(self) -> Floats:
        rng, dt, n = self._rng, self._every_s, len(self._busy)
        turn = rng.random(n) < dt / np.where(self._busy, 900.0, 500.0)
        self._busy ^= turn
        self._level[turn] = rng.beta(1.4, 2.6, int(turn.sum()))
        grows = rng.random(n) < dt / 1200.0
        self._ram[grows] *= rng.uniform(1.02, 1.3, int(grows.sum()))
        full = self._ram > 0.95
        self._ram[full] = rng.beta(1.4, 2.6, int(full.sum())) * 0.4  # the next input begins
        cpu = np.where(self._busy, self._level, 0.03) * rng.lognormal(0.0, 0.35, n)
        self._disk = np.clip(self._disk + rng.normal(0, 0.002, n), 0.02, 0.95)
        return np.column_stack([np.clip(cpu, 0.0, 1.3), np.clip(self._ram, 0.01, 1.0), self._disk])


class Google2011Usage:
    """Usage of N tasks whose priorities are drawn from those of Google's cell, like `ServiceUsage`."""

    def __init__(self, tasks: int, rng: np.random.Generator, every_s: float) -> None:
        self._every_s, self._now, self._drawn = every_s, 0.0, Drawn()
        known = [(spec["priority"], spec["tasks"]) for spec in google2011.specs()]
        shares = np.array([number for _, number in known], dtype=np.float64)
        self._priority = rng.choice([priority for priority, _ in known], tasks, p=shares / shares.sum())
        self._ids = np.arange(1, tasks + 1)
        # Usage is drawn in whole numbers, so the limit of the drawing is large.
        self._limit = np.full((tasks, 3), 2**40)

    def step(self) -> Floats:
        self._now += self._every_s
        return self._drawn.demand(self._ids, self._limit, self._priority, self._now) / self._limit
