"""What the DNS names of a job use (§2.6), such as the weights of its tasks, and its track in its service. Pure."""

from __future__ import annotations

from collections.abc import Mapping

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


TRACK = "track"  # the label


def track_of(job: str, labels: Mapping[str, str]) -> str:
    """Return the track of a job in its service: its label `track`, or else `job`, its name."""
    return labels.get(TRACK) or job
