"""The plan of a pass, as a value. `scheduling.master.commit` checks it again and applies it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from scheduling.core.vocabulary.reasons import Why


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """The assignment of one pending task to a machine. Ids are database ids. `score`: the score of each scorer.

    `ports`: numbers in the order of the job's port names. `victims`: (job id, index) of the running tasks that the
    same commit preempts on the machine, lowest priority first (§3.2). `alloc`: the task id of the alloc that receives
    the task (§2.4), 0 for none. `devices`: indexes of the task's accelerators. `runners_up`: (machine id, score) of
    the next best machines. `packages`: how many bytes of the task's packages the machine has already, and how many
    bytes there are in all.
    """

    job_id: int
    index: int
    machine_id: int
    ports: tuple[int, ...] = ()
    victims: tuple[tuple[int, int], ...] = ()
    score: dict[str, float] = {}
    alloc: int = 0
    devices: tuple[int, ...] = ()
    runners_up: tuple[tuple[int, float], ...] = ()
    packages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PassStats:
    """Statistics of one pass. The caller adds durations, because a pass reads no clock."""

    pending: int = 0
    classes: int = 0
    placed: int = 0
    preempted: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cut: bool = False  # some tasks were not tried: the pass had placed as many as it may


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a pass. `assignments`: in the order in which the pass decided. `unplaced`: one explanation (`Why`)
    per group of equal tasks that stay pending.
    """

    revision: int  # of the state it was made from
    assignments: tuple[Assignment, ...] = ()
    unplaced: tuple[Why, ...] = ()
    stats: PassStats = PassStats()
