"""How a pass decides: values from the cell's settings, fixed for one pass."""

from __future__ import annotations

from dataclasses import dataclass

from quota.bands import DEFAULT_BANDS, Band


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that a pass may depend on besides the state, the time and the seed."""

    bands: tuple[Band, ...] = DEFAULT_BANDS
    """Ranges of priorities; they decide who is prod, and who may preempt whom (§2.5)."""

    scorer: str = "hybrid"
    """Packing: hybrid (fewest stranded resources), best-fit or e-pvm (§3.2)."""

    batch_in_prod_by_reservation: bool = False
    """Footnote 4 of §5.5: batch tasks of prod bands may be placed in reclaimed resources."""

    crashed_pair_s: float = 600.0
    """How long a task is kept off a machine that it crashed on (§4)."""

    enough: int = 256
    """Relaxed randomisation (§3.4): this many feasible machines are scored, from a random start. 0: all."""

    cache: bool = True
    """Whether what is known of a class and a machine is kept until either changes (§3.4)."""

    max_assignments: int = 50_000
    """A pass stops here; the rest is for the next one, so that the first are committed soon."""

    spread_weight: float = 0.6
    """What each task of the same job on a machine costs; racks and power domains cost a part of it."""

    soft_weight: float = 0.3
    """What a broken soft constraint of weight 1 costs."""

    stay_bonus: float = 0.5
    """What the machine is worth that ran the task before: its packages are there (§3.2)."""
