"""Usage and failures of a cell's tasks: three kinds of load for the bench `journal`. The module does no I/O.

* `services`: usage rises and falls daily, with noise over minutes and with short bursts. A few tasks fail their health
  check every minute or two, and a few restart again and again.
* `batch`: tasks alternate between busy and idle phases of minutes, with large random peaks, and their memory grows in
  steps. Fewer tasks fail health checks, but for longer. More tasks restart.
* `google2011`: priorities as in Google's cell of 2011, with the usage of the simulator, whose means are those of
  Google's trace of 2019, and which changes every five minutes. Tasks fail as often as in the simulator. A machine
  exchanges one package as often as a job arrived per machine. The rules that save journal rows were not tuned with it.
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
    """How often tasks fail and restart.

    `flapping`: share of the tasks whose health check fails from time to time. `healthy_s`, `unhealthy_s`: mean lengths
    of their phases. `restarting`: share of the tasks that exit again and again. `run_s`: mean time until such a task
    exits. `backoff_s`: time until its next start. `moves`: exchanges of one package for another, per machine and day.
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
    """The state of a task that a Borglet would report at one moment."""

    phase: Phase = Phase.UP
    health: Health = Health.UNKNOWN
    restarts: int = 0
    exited_at: float = 0.0


_START_S = 3.0


class UnstableTask:
    """A task that restarts again and again: because its health check fails (`flapping`), or because it exits."""

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
        """Change `seen` to the next state, and yield the seconds that it lasts, without end."""
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
    """The usage of N service tasks over time. `step` returns shares of their limits [N, 3] after another `every_s`
    seconds."""

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
    """The usage of N batch tasks over time. `step` returns shares of their limits [N, 3] after another `every_s`
    seconds."""

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
        self._ram[full] = rng.beta(1.4, 2.6, int(full.sum())) * 0.4  # the task begins with new data
        cpu = np.where(self._busy, self._level, 0.03) * rng.lognormal(0.0, 0.35, n)
        self._disk = np.clip(self._disk + rng.normal(0, 0.002, n), 0.02, 0.95)
        return np.column_stack([np.clip(cpu, 0.0, 1.3), np.clip(self._ram, 0.01, 1.0), self._disk])


class Google2011Usage:
    """The simulator's usage of N tasks, with priorities drawn from Google's cell of 2011.

    `step` returns shares of their limits [N, 3] after another `every_s` seconds.
    """

    def __init__(self, tasks: int, rng: np.random.Generator, every_s: float) -> None:
        self._every_s, self._now, self._drawn = every_s, 0.0, Drawn()
        known = [(spec["priority"], spec["tasks"]) for spec in google2011.specs()]
        shares = np.array([number for _, number in known], dtype=np.float64)
        self._priority = rng.choice([priority for priority, _ in known], tasks, p=shares / shares.sum())
        self._ids = np.arange(1, tasks + 1)
        # `demand` returns integers, so a large limit is needed for precise shares.
        self._limit = np.full((tasks, 3), 2**40)

    def step(self) -> Floats:
        self._now += self._every_s
        return self._drawn.demand(self._ids, self._limit, self._priority, self._now) / self._limit
