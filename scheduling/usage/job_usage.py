"""The limits, reservations and usage of each job of a cell, as sums over its running tasks. The master publishes them
in Redis at each reclamation cycle, so lists of jobs can show them without reading tasks.

borg:jobs:<cell>   the time (8 bytes) and `SUMS` rows, which expire a minute after the last update
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduling.journal import wakeups

_KEEP_S = 60
# One row per job with running tasks. `measured`: the number of tasks with a recent sample. The vectors have CPU in
# milli-cores, and RAM and disk in bytes. `usage`: the sum over the measured tasks.
SUMS = np.dtype(
    [
        ("job_id", "<i8"),
        ("running", "<i4"),
        ("measured", "<i4"),
        ("limit", "<i8", (3,)),
        ("reservation", "<i8", (3,)),
        ("usage", "<i8", (3,)),
    ]
)


class JobSums(NamedTuple):
    """The sums of all jobs of a cell at the time `at`, in seconds since the epoch by Redis' clock. `rows`: an array
    with the dtype `SUMS`, in any order.
    """

    at: float
    rows: NDArray[np.void]


def publish(cell_id: int, sums: JobSums) -> None:
    """Publish the sums in Redis. Raises `redis.RedisError` if Redis cannot be reached."""
    wakeups.client().set(_key(cell_id), np.float64(sums.at).tobytes() + sums.rows.tobytes(), ex=_KEEP_S)


def read(cell_id: int) -> JobSums | None:
    """Return the newest sums of a cell, or None if the master published none in the last minute. Raises
    `redis.RedisError` if Redis cannot be reached.
    """
    packed: bytes | None = wakeups.client().get(_key(cell_id))  # type: ignore[assignment]
    if packed is None:
        return None
    return JobSums(float(np.frombuffer(packed, np.float64, 1)[0]), np.frombuffer(packed, SUMS, offset=8))


def _key(cell_id: int) -> str:
    return f"borg:jobs:{cell_id}"
