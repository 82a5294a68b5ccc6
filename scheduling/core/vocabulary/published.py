"""The publication of a job's names (§2.6): the file's `names`, and the weights of its tasks. Pure."""

from __future__ import annotations

import msgspec


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """Publication of a job's names, in force at once for all its tasks, whatever version of the spec they run.

    `ttl_s`: how long clients may remember its answers, in seconds; 0: as long as the installation says
    (`BORG_DNS_TTL`). `weights`: (first, last, weight) of tasks whose share of the clients is not 1, in order of
    indexes, never overlapping; a weight is 0 to 65,535, as in SRV records (RFC 2782).
    """

    ttl_s: int = 0
    weights: tuple[tuple[int, int, int], ...] = ()
