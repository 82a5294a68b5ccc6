"""Settings of a job that its DNS names use (§2.6), such as the weights of its tasks. Pure."""

from __future__ import annotations

import msgspec


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings for the DNS names of a job. A change applies at once to all tasks of the job, even to tasks with an
    older version of the spec.

    `ttl_s`: how long clients may cache DNS answers, in seconds; 0 means the default of the installation
    (`BORG_DNS_TTL`). `weights`: (first index, last index, weight) for each range of tasks whose weight is not 1. The
    ranges are sorted and do not overlap. A weight is 0 to 65,535, as in SRV records (RFC 2782).
    """

    ttl_s: int = 0
    weights: tuple[tuple[int, int, int], ...] = ()
