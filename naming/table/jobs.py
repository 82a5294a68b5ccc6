"""The jobs and services of a name table. A service consists of all jobs of a tenant whose label `service` is the name
of the service. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from naming.table.answering_tasks import Answering, Pool, Stratum, Weigh, own_weight
from naming.table.endpoints import weight_of
from naming.table.names import InvalidName, parse_index
from naming.table.service_weights import ServiceWeights, WeighedTasks
from scheduling.core.vocabulary.published import track_of


class Indexes:
    """The task indexes of a job, stored as ranges. Each range includes its first and its last index."""

    __slots__ = ("_firsts", "_lasts", "size")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.size = 0

    def __contains__(self, index: int) -> bool:
        at = bisect_right(self._firsts, index) - 1
        return at >= 0 and index <= self._lasts[at]

    def __iter__(self) -> Iterator[int]:
        for first, last in zip(self._firsts, self._lasts, strict=True):
            yield from range(first, last + 1)

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._lasts, strict=True))

    def add(self, ranges: Iterable[tuple[int, int]]) -> None:
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*zip(self._firsts, self._lasts, strict=True), *ranges]):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        self._firsts = [first for first, _ in merged]
        self._lasts = [last for _, last in merged]
        self.size = sum(last - first + 1 for first, last in merged)


Weights = tuple[tuple[int, int, int], ...]  # of `scheduling.core.vocabulary.published.Published`


@dataclass(slots=True, eq=False)
class NamedJob:
    """A live job and its placed tasks, as the name table stores them."""

    job_id: int
    tenant: str
    name: str
    kind: str  # "job" or "alloc-set"
    port_names: tuple[str, ...]
    labels: dict[str, str]
    ttl_s: int = 0  # of its answers; 0: the default of the directory
    weights: Weights = ()
    indexes: Indexes = field(default_factory=Indexes)
    placed: Pool = field(default_factory=Pool)
    serving: Pool = field(default_factory=Pool)
    revision: int = 0  # of the last change of its names, or `naming.table.table.GONE`
    versions: dict[int, tuple[str, ...]] = field(default_factory=dict)  # spec version -> names of its ports
    service: NamedService | None = None  # the service in its labels
    _names: set[str] = field(default_factory=set)  # the port names of all `versions`

    @property
    def fails_open(self) -> bool:
        """Return whether tasks are placed, but none of them serves. Clients then get all placed tasks."""
        return not self.serving and bool(self.placed)

    @property
    def answering(self) -> Answering:
        return Answering.serving_or_placed(serving=self.serving.strata(), placed=self.placed.strata())

    @property
    def track(self) -> str:
        """Return the track of the job in its service."""
        return track_of(self.name, self.labels)

    def weigh_in_answers(self) -> Weigh:
        """Return a function that returns the weight of a task in the SRV records of this name."""
        return own_weight

    @property
    def tasks_total(self) -> int:
        return self.indexes.size

    @property
    def placed_total(self) -> int:
        return len(self.placed)

    @property
    def serving_total(self) -> int:
        return len(self.serving)

    def ttl_s_or(self, otherwise: int) -> int:
        """Return for how many seconds clients may cache answers about the job. Return `otherwise` if the job sets no
        value.
        """
        return self.ttl_s or otherwise

    def index_of(self, label: str) -> int | None:
        """Return the task index that the DNS label `label` stands for, or None if the job has no such task."""
        try:
            index = parse_index(label)
        except InvalidName:
            return None
        return index if index in self.indexes else None

    def follow(self, version: int, port_names: tuple[str, ...]) -> None:
        """Set the spec version that the job now uses, and the port names of this version."""
        if port_names == self.port_names:
            port_names = self.port_names  # all versions share one object, which saves memory
        self.port_names = self.versions[version] = port_names
        self._names.update(port_names)

    def all_port_names(self) -> set[str]:
        """Return the port names of every known spec version of this job. Callers must not change the set."""
        return self._names

    def weigh(self, weights: Weights) -> None:
        """Set the weights of the job's tasks. `weights`: ranges of task indexes with their weights."""
        self.weights = weights
        for task in list(self.placed.tasks):
            weight = weight_of(task.index, weights)
            if weight != task.weight:
                pools = [pool for pool in (self.placed, self.serving) if pool.discard(task.index)]
                task.weight = weight
                for pool in pools:
                    pool.put(task)


@dataclass(slots=True, eq=False)
class NamedService:
    """A service: all jobs of a tenant whose label `service` is the name of the service. If no task of these jobs
    serves, clients get all placed tasks of the jobs. `weights`: the weights of its tracks
    (`naming.table.service_weights`); empty: the weights of the tasks decide alone.
    """

    tenant: str
    name: str
    jobs: dict[int, NamedJob] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    revision: int = 0  # of the last change of its names, or `naming.table.table.GONE`
    _task_weights: ServiceWeights | None = None

    @property
    def tasks_total(self) -> int:
        return sum(job.indexes.size for job in self.jobs.values())

    @property
    def placed_total(self) -> int:
        return sum(len(job.placed) for job in self.jobs.values())

    @property
    def serving_total(self) -> int:
        return sum(len(job.serving) for job in self.jobs.values())

    @property
    def fails_open(self) -> bool:
        """Return whether tasks are placed, but none of them serves. Clients then get all placed tasks."""
        return not self.serving_total and bool(self.placed_total)

    @property
    def answering(self) -> Answering:
        weights = self.task_weights() if self.weights else None
        return Answering.serving_or_placed(
            serving=self._strata(weights, [(job, job.serving) for job in self.jobs.values()]),
            placed=self._strata(weights, [(job, job.placed) for job in self.jobs.values()]),
        )

    def weigh_in_answers(self) -> Weigh:
        """Return a function that returns the weight of a task in the SRV records of this name."""
        if not self.weights:
            return own_weight
        weights = self.task_weights()
        return lambda task: weights.of(task.job.track, task.weight)

    def changed(self, revision: int) -> None:
        """Store the revision of a change of its jobs, their tasks or its weights."""
        self.revision, self._task_weights = revision, None

    def task_weights(self) -> ServiceWeights:
        """Return the weights of its tasks in answers. They are computed once after each change."""
        if self._task_weights is None:
            self._task_weights = ServiceWeights(
                self.weights,
                (
                    WeighedTasks(job.track, weight, len(tasks))
                    for job in self.jobs.values()
                    for weight, tasks in job.placed.strata()
                ),
            )
        return self._task_weights

    @staticmethod
    def _strata(weights: ServiceWeights | None, pools: Iterable[tuple[NamedJob, Pool]]) -> Iterator[Stratum]:
        for job, pool in pools:
            yield from pool.strata(None if weights is None else partial(weights.of, job.track))

    def all_port_names(self) -> set[str]:
        return set[str]().union(*(job.all_port_names() for job in self.jobs.values()))

    def ttl_s_or(self, otherwise: int) -> int:
        """Return for how many seconds clients may cache answers about the service. This is the shortest time of its
        jobs.

        `otherwise`: the time for a job that sets no value.
        """
        return min((job.ttl_s or otherwise for job in self.jobs.values()), default=otherwise)
