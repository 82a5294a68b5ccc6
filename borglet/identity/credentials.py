"""The machine's identity in its cell and the authorities it trusts: stored durably and renewed while the Borglet runs.

    Poll.rotate ─► offer: a new secret is made and kept beside the old one ─► Report.offer (its digest)
    Poll.accepted ─► dial in with the new one ─► admitted: the old one is forgotten, here and in the cell

The secret itself is sent only to dial in. If the exchange is interrupted at any point, one of the two stored secrets
opens the link: the Borglet tries the newest first, and the other one if the cell rejects it.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import ssl
from collections.abc import Callable
from typing import Protocol

import msgspec

from borglet.identity.store import Identity
from borglet.messages import authority_digest

log = logging.getLogger(__name__)


class BadAuthority(ValueError):
    """The file with the cell's authority holds no certificate: join again with a new token."""


class CredentialStore(Protocol):
    """The store of identity and authorities. Both writes are safe against a power loss once they return; raise
    OSError.
    """

    def keep_identity(self, identity: Identity) -> None: ...

    def keep_authority(self, pem: str) -> None: ...


class Credentials:
    """The credentials of one machine. `context`: TLS that trusts its cell's authorities and no other."""

    def __init__(
        self,
        identity: Identity,
        authority: str,
        keeper: CredentialStore,
        *,
        contexts: Callable[[str], ssl.SSLContext] | None = None,
    ) -> None:
        """`contexts`: makes TLS contexts; machines of one process may share those of one authority. Raises
        `BadAuthority`."""
        self._identity, self._keeper = identity, keeper
        self._contexts = contexts or pinned_context
        self.context = self._contexts(authority)
        self.authority = authority_digest(authority)
        self._newest = bool(identity.next)  # whether `next` is worth a try
        self._tried_newest = False

    @property
    def hostname(self) -> str:
        return self._identity.hostname

    @property
    def api_url(self) -> str:
        """Return the address of the REST API for tasks, as last received from the cell."""
        return self._identity.api_url

    def authorization(self) -> str:
        """Return the `Authorization` header for dialling the link."""
        self._tried_newest = self._newest
        secret = self._identity.next if self._newest else self._identity.secret
        return f"Bearer {self._identity.hostname}:{secret}"

    def bearer(self) -> str:
        """Return the `Authorization` header for other requests, with the secret that opened the link last."""
        return f"Bearer {self._identity.hostname}:{self._identity.secret}"

    def refused(self) -> bool:
        """Record that the cell rejected the last secret. Return whether there is another one to try at once."""
        self._newest = not self._tried_newest and bool(self._identity.next)
        return self._tried_newest

    def admitted(self) -> None:
        """Record that the last secret opened the link."""
        if not self._tried_newest:
            return
        log.info("the cell accepted the new secret of this machine; the old secret is no longer valid")
        self._newest = False
        # If this write fails, both secrets are still on the disk, and the newest is tried first.
        renewed = msgspec.structs.replace(self._identity, secret=self._identity.next, next="")
        self._keep(renewed)
        self._identity = renewed

    def offer(self) -> str:
        """Return the SHA-256 of the next secret, which is on the disk; empty if it could not be stored there."""
        if not self._identity.next:
            kept = self._keep(msgspec.structs.replace(self._identity, next=secrets.token_urlsafe(32)))
            if not kept:
                return ""
        return hashlib.sha256(self._identity.next.encode()).hexdigest()

    def accepted(self, digest: str) -> bool:
        """Record that the cell knows the secret with this digest. Return whether it is the offered one."""
        if not self._identity.next or digest != self.offer():
            log.warning("the shard accepted a secret that this machine did not offer; the Borglet ignores this")
            return False
        self._newest = True
        return True

    def apply_welcome(self, *, authority: str, api_url: str) -> None:
        """Store the API URL and authorities of the cell's welcome; an empty value means no change."""
        if api_url and api_url != self._identity.api_url:
            self._keep(msgspec.structs.replace(self._identity, api_url=api_url))
        if authority:
            self._trust(authority)

    def _trust(self, authority: str) -> None:
        try:
            if authority_digest(authority) == self.authority:
                return
            context = self._contexts(authority)
            self._keeper.keep_authority(authority)
        except (ValueError, OSError) as error:
            log.error("cannot use the cell's new authorities: %s", error)
            return
        self.context, self.authority = context, authority_digest(authority)
        log.info("the Borglet now trusts %d authorities of the cell", authority.count("BEGIN CERTIFICATE"))

    def _keep(self, identity: Identity) -> bool:
        """Store and use an identity. Return False, with no change, if the disk rejects it."""
        try:
            self._keeper.keep_identity(identity)
        except OSError as error:
            log.error("cannot save the identity of this machine: %s", error)
            return False
        self._identity = identity
        return True


def pinned_context(authority: str) -> ssl.SSLContext:
    """TLS that trusts the cell's own authorities and no other. `authority`: PEM. Raises `BadAuthority`."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise BadAuthority(f"authority: not a certificate in PEM form: {error}") from error
    return context
