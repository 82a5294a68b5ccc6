"""The settings for the names of a job in DNS (§2.6): `names` in the job file, and the weights of its tasks. Pure."""

from __future__ import annotations

import msgspec


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings for the names of a job. They apply at once to all its tasks, whatever version of the spec these run.

    `ttl_s`: how long clients may cache DNS answers, in seconds; 0 means the default of the installation
    (`BORG_DNS_TTL`). `weights`: (first, last, weight) of ranges of tasks whose weight is not 1, sorted by index,
    without overlaps. A weight is 0 to 65,535, as in SRV records (RFC 2782).
    """

    ttl_s: int = 0
    weights: tuple[tuple[int, int, int], ...] = ()
