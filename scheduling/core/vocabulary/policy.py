"""The parameters of passes that an SRE can choose, given as values. A pass reads no settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from quota.vocabulary.bands import DEFAULT_BANDS, Band, band_of

# Service: latency-sensitive jobs and alloc sets. Batch: the rest. Nothing: all of them.
Workload = Literal["", "service", "batch"]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the parts of a score; parts lie about between -1 and 1, victims cost 1 to 5 each."""

    packing: float = 1.0
    """Leaving room that can be used, as the scorer chosen for the cell measures it."""

    spread_machine: float = 0.3
    """The share of the job that would fail with the machine (§4)."""

    spread_rack: float = 0.2
    """The share of the job that would fail with the rack."""

    spread_power_domain: float = 0.1
    """The share of the job that would fail with the power domain."""

    soft_constraints: float = 0.5
    """The share of the soft constraints that hold, by their own weights."""

    packages: float = 0.3
    """The share of its packages' bytes that the machine has (§3.2: installation is 80 % of start-up). To a task that
    names none, the machine where it was before counts like one that has all."""

    mixing: float = 0.02
    """High and low priority share machines, so that the high may expand (§3.2)."""

    preemption: float = 10.0
    """Few victims, and of low priority; above all else."""


@dataclass(frozen=True, slots=True)
class Search:
    """The three techniques of §3.4. The bench switches them off to show what they buy."""

    sample: int = 24
    """How many feasible machines are scored before the best of them is taken."""

    randomise: bool = True
    """Relaxed randomisation: look for them along a random walk; off: score every feasible machine."""

    caching: bool = True
    """Keep the scores of a class until its machines change."""

    classes: bool = True
    """Tasks with equal requirements are examined once, across jobs."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The parameters of a pass. Equal policies, states, `now` and seeds give equal plans."""

    weights: Weights = field(default_factory=Weights)
    """What counts how much when machines are compared."""

    search: Search = field(default_factory=Search)
    """How widely to look."""

    scorer: str = "hybrid"
    """How packing is measured (§3.2): hybrid, best-fit or e-pvm."""

    bands: tuple[Band, ...] = DEFAULT_BANDS
    """Which priorities are prod, and who may preempt whom (§2.5)."""

    batch_in_prod_by_reservation: bool = False
    """Footnote 4 of §5.5: batch tasks in prod bands may be placed in reclaimed resources."""

    crashed_pair_s: float = 600.0
    """How long a task is kept off a machine it crashed on (§4), seconds."""

    workload: Workload = ""
    """The workload that the pass places if a cell has several schedulers (§3.4): service, batch, or all."""

    max_assignments: int = 100_000
    """A pass ends after so many, or with the gang it is at: what it decided has to be committed before it is stale."""

    resource_weights: tuple[float, ...] = (1.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    """How much each resource of the axis counts for packing; resources beyond the last count nothing."""

    def by_limit(self, priority: int, latency_sensitive: bool) -> bool:
        """Return whether a task is placed by limits, so never in reclaimed resources (§5.5). False outside all
        bands.
        """
        try:
            prod = band_of(priority, self.bands).prod
        except LookupError:
            return False
        return prod and (latency_sensitive or not self.batch_in_prod_by_reservation)

    def ceiling(self, priority: int) -> int:
        """A task of `priority` may preempt exactly the priorities below this (§2.5)."""
        try:
            band = band_of(priority, self.bands)
        except LookupError:
            return 0
        return priority if band.preempts_within else band.low
