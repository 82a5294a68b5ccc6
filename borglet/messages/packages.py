"""Packages (§3.2): references, sources and tickets."""

from __future__ import annotations

import msgspec


class PackageRef(msgspec.Struct, frozen=True):
    """One content-addressed archive (§3.2). `digest` is of the archive as stored: `sha256:` and 64 hex digits."""

    name: str  # as in the job file, for people: `name@tag` or `name@sha256:…`
    digest: str
    size_bytes: int
    format: str = "tar"  # tar, tar+gzip, tar+zstd: a manifest beside a tree; oci: an OCI image layout in a tar


class PeerAddress(msgspec.Struct, frozen=True):
    """The address at which a Borglet serves its archives of packages to Borglets with a ticket."""

    address: str
    port: int


class PackageSources(msgspec.Struct, frozen=True):
    """Answer to GET /packages/<digest>/sources: the sources of a package for this machine, best first."""

    peers: list[PeerAddress]
    store: str  # path on the link's own host, if no peer delivers; empty: ask again in `retry_after_s`
    ticket: str  # signed by the cell's authority; opens that package at any peer, for some minutes
    retry_after_s: float = 0.0


class PackageHave(msgspec.Struct, frozen=True):
    """POST /packages/<digest>/have: the package is installed here, and served on `port`; 0: not served."""

    port: int = 0


class PackageFailed(msgspec.Struct, frozen=True):
    """POST /packages/<digest>/failed: a source that did not deliver. An empty address means the link's store.

    `reason`: mismatch (content with another digest), slow, unreachable, busy, rejected.
    """

    address: str
    port: int
    reason: str


class PackageTicket(msgspec.Struct, frozen=True):
    """The content of a ticket: `machine` may fetch the archive `digest` from any peer before `expires_at` (epoch,
    s).
    """

    digest: str
    machine: str
    expires_at: float
