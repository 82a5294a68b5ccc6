"""Decaying histograms of usage, as arrays with one row per job. Pure.

    windows of five minutes ─► bucket of each ─► weights [J, B] ── half as much per half-life ──► percentile, peak

The buckets grow by 5 %, so a value that is read from a histogram is at most 5 % above the measured one, and never below
it. A measurement has the weight 1 at its time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Weights = NDArray[np.float32]  # [J, B]
Ints = NDArray[np.int64]

GROWTH = 1.05


class Buckets(NamedTuple):
    """The buckets of a resource. The first one holds everything up to `first`, and the last one everything above."""

    first: float
    number: int

    def of(self, values: Floats) -> Ints:
        """Return the bucket of each value."""
        steps = np.ceil(np.log(np.maximum(values, self.first) / self.first) / np.log(GROWTH) - 1e-9)
        result: Ints = np.clip(steps, 0, self.number - 1).astype(np.int64)
        return result

    @property
    def ends(self) -> Floats:
        """Return the largest value of each bucket."""
        result: Floats = self.first * GROWTH ** np.arange(self.number, dtype=np.float64)
        return result

    def sql(self, value: str) -> str:
        """Return an SQL expression for the bucket of an SQL expression."""
        steps = f"ceil(ln(greatest({value}, {self.first}) / {self.first}) / ln({GROWTH}) - 1e-9)"
        return f"least({self.number - 1}, greatest(0, {steps}))::integer"


# Milli-cores up to 1,300 cores, and bytes up to 17 TiB.
CPU_BUCKETS = Buckets(5.0, 256)
RAM_BUCKETS = Buckets(float(2**20), 342)


def empty(jobs: int, buckets: Buckets) -> Weights:
    return np.zeros((jobs, buckets.number), dtype=np.float32)


def unpack(stored: list[bytes], buckets: Buckets) -> Weights:
    """Return stored histograms as an array [J, B]. A histogram of another length counts as empty."""
    size = 4 * buckets.number
    whole = b"".join(bytes(one) if len(one) == size else bytes(size) for one in stored)
    return np.frombuffer(whole, dtype="<f4").reshape(-1, buckets.number).astype(np.float32)


def pack(weights: Weights) -> list[bytes]:
    """Return each row in the form that is stored."""
    return [row.tobytes() for row in weights.astype("<f4")]


def decay(weights: Weights, passed_s: Floats, half_life_s: Floats) -> None:
    """Reduce the weights in place. `passed_s`, `half_life_s` [J]. Tiny weights become 0, so that no weight stays for
    ever.
    """
    weights *= np.exp2(-np.maximum(passed_s, 0.0) / half_life_s)[:, None].astype(np.float32)
    weights[weights < 1e-6] = 0.0


def percentiles(weights: Weights, shares: Floats, buckets: Buckets) -> Floats:
    """Return for each row the value below which the share `shares` [J] of the weight is; 0 for an empty row."""
    sums = np.cumsum(weights, axis=1, dtype=np.float64)
    total = sums[:, -1]
    place = (sums < (shares * total)[:, None] - 1e-9).sum(axis=1)
    return np.where(total > 0, buckets.ends[np.minimum(place, buckets.number - 1)], 0.0)


def peaks(weights: Weights, least: Floats, buckets: Buckets) -> Floats:
    """Return for each row the largest value whose weight is at least `least` [J]; 0 if there is none. So a single
    measurement counts until it has decayed to `least`, however many others there are.
    """
    counts = weights >= least[:, None]
    last = buckets.number - 1 - np.argmax(counts[:, ::-1], axis=1)
    return np.where(counts.any(axis=1), buckets.ends[last], 0.0)
