"""Packages (§3.2): references, sources and tickets."""

from __future__ import annotations

import msgspec


class PackageRef(msgspec.Struct, frozen=True):
    """A reference to a package (§3.2). `digest`: the digest of the stored archive, `sha256:` and 64 hex digits."""

    name: str  # the name in the job file, for people: `name@tag` or `name@sha256:…`
    digest: str
    size_bytes: int
    format: str = "tar"  # tar, tar+gzip, tar+zstd, or oci: an OCI image layout in a tar


class PeerAddress(msgspec.Struct, frozen=True):
    """The address at which other Borglets can download packages from a Borglet. They need a ticket."""

    address: str
    port: int


class PackageSources(msgspec.Struct, frozen=True):
    """The answer to GET /packages/<digest>/sources: the sources of a package for this machine, best first."""

    peers: list[PeerAddress]
    store: str  # path on the link's own host, for use after all peers; empty: ask again in `retry_after_s`
    ticket: str  # signed by the cell's authority; gives access to this package at all peers, for some minutes
    retry_after_s: float = 0.0


class PackageHave(msgspec.Struct, frozen=True):
    """The body of POST /packages/<digest>/have: this machine has installed the package.

    `port`: the port at which other machines can download the package; 0 if this machine does not serve it.
    """

    port: int = 0


class PackageFailed(msgspec.Struct, frozen=True):
    """The body of POST /packages/<digest>/failed: the download from a source failed. An empty address means that the
    source is the package store of the link server.

    `reason`: `mismatch` (the content has another digest), `slow`, `unreachable`, `busy` or `refused`.
    """

    address: str
    port: int
    reason: str


class PackageTicket(msgspec.Struct, frozen=True):
    """The content of a ticket: `machine` may download the archive `digest` from peers until `expires_at` (epoch, s)."""

    digest: str
    machine: str
    expires_at: float
