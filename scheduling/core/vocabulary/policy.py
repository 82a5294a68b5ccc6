"""The parameters of scheduling passes that an SRE can choose. A pass receives them as an argument."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from quota.vocabulary.bands import DEFAULT_BANDS, Band, band_of

# Service: latency-sensitive jobs and alloc sets. Batch: the rest. Nothing: all of them.
Workload = Literal["", "service", "batch"]


@dataclass(frozen=True, slots=True)
class Weights:
    """The factor of each scorer in the total score of a machine. A scorer returns a number from about -1 to 1. Only the
    scorer `preemption` can return less: -1 to -5 for each preempted task.
    """

    packing: float = 1.0
    """How much usable room remains after the placement, as measured by the cell's scorer."""

    spread_machine: float = 0.3
    """The share of the job that would fail with the machine (§4)."""

    spread_rack: float = 0.2
    """The share of the job that would fail with the rack."""

    spread_power_domain: float = 0.1
    """The share of the job that would fail with the power domain."""

    soft_constraints: float = 0.5
    """The share of the soft constraints that are satisfied, by their own weights."""

    packages: float = 0.3
    """The share of the bytes of the task's packages that the machine has (§3.2: installation is 80 % of start-up). For
    a task without packages, its previous machine counts like one that has all."""

    mixing: float = 0.02
    """Tasks of high and low priority share machines, so that tasks of high priority can expand (§3.2)."""

    preemption: float = 10.0
    """The number and the priority of preempted tasks. This weight is larger than all others."""


@dataclass(frozen=True, slots=True)
class Search:
    """Settings of the techniques that make passes fast (§3.4): score caching, equivalence classes and relaxed
    randomisation. Each technique can be switched off.
    """

    sample: int = 24
    """How many feasible machines are scored. The best of them is chosen."""

    randomise: bool = True
    """On: examine machines in random order until enough are feasible (relaxed randomisation). Off: score every feasible
    machine."""

    caching: bool = True
    """Keep the scores of an equivalence class of tasks until the machines change."""

    classes: bool = True
    """Tasks with equal requirements are examined once, across jobs."""


@dataclass(frozen=True, slots=True)
class Policy:
    """All parameters of a scheduling pass."""

    weights: Weights = field(default_factory=Weights)
    """The weights with which machines are compared."""

    search: Search = field(default_factory=Search)
    """How many machines are examined for each task."""

    scorer: str = "hybrid"
    """How packing is measured (§3.2): hybrid, best-fit or e-pvm."""

    bands: tuple[Band, ...] = DEFAULT_BANDS
    """Which priorities are prod, and who may preempt whom (§2.5)."""

    batch_in_prod_by_reservation: bool = False
    """Footnote 4 of §5.5: batch tasks in prod bands may be placed in reclaimed resources."""

    crashed_pair_s: float = 600.0
    """How long a task is kept off a machine it crashed on (§4), seconds."""

    maintenance_horizon_s: float = 86_400.0
    """So long before a maintenance window of a machine, tasks without a time limit prefer other machines, and a task
    whose time limit crosses the start of the window does not start there, seconds."""

    workload: Workload = ""
    """The workload that the pass places if a cell has several schedulers (§3.4): service, batch, or all."""

    max_assignments: int = 100_000
    """Largest number of assignments in one pass; a gang that was begun is finished. The plan must be committed before
    it is out of date."""

    resource_weights: tuple[float, ...] = (1.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    """Weight of each resource for packing, in the order of the resource vector. Resources after the last have none."""

    def by_limit(self, priority: int, latency_sensitive: bool) -> bool:
        """Return whether a task is placed by its limit. Such a task uses no reclaimed resources (§5.5). Return False if
        the priority is in no band.
        """
        try:
            prod = band_of(priority, self.bands).prod
        except LookupError:
            return False
        return prod and (latency_sensitive or not self.batch_in_prod_by_reservation)
