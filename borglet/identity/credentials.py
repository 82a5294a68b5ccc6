"""Store and renew the machine's identity in its cell and the certificate authorities that the machine trusts.

    Poll.rotate ─► offer: the Borglet makes a new secret and keeps the old one ─► Report.offer (its digest)
    Poll.accepted ─► connect with the new secret ─► admitted: Borglet and cell delete the old secret

The Borglet sends the secret itself only to connect. If the exchange is interrupted at any point, one of the two stored
secrets opens the link: the Borglet tries the newest first, and the other one if the cell rejects it.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import ssl
from collections.abc import Callable
from typing import Protocol

import msgspec

from borglet.identity.saved_state import Identity
from borglet.messages import authority_digest

log = logging.getLogger(__name__)


class BadAuthority(ValueError):
    """The error for a file of certificate authorities that contains no valid certificate. To replace the file, join
    again with a new token.
    """


class CredentialStore(Protocol):
    """The store of a machine's identity and of the certificate authorities that it trusts. The stored values survive a
    power loss. The methods raise OSError if a write fails.
    """

    def keep_identity(self, identity: Identity) -> None: ...

    def keep_authority(self, pem: str) -> None: ...


class Credentials:
    """The credentials of one machine. `context`: the TLS context, which trusts only the authorities of the machine's
    cell.
    """

    def __init__(
        self,
        identity: Identity,
        authority: str,
        keeper: CredentialStore,
        *,
        contexts: Callable[[str], ssl.SSLContext] | None = None,
    ) -> None:
        """Set up credentials. `authority`: certificates, PEM. `keeper`: stores the secrets. `contexts`: returns the TLS
        context for certificates (PEM). Machines in one process can share a context. Raises `BadAuthority` if
        `authority` is not valid PEM.
        """
        self._identity, self._keeper = identity, keeper
        self._contexts = contexts or pinned_context
        self.context = self._contexts(authority)
        self.authority = authority_digest(authority)
        self._newest = bool(identity.next)  # whether to try `next` first
        self._tried_newest = False

    @property
    def hostname(self) -> str:
        return self._identity.hostname

    @property
    def api_url(self) -> str:
        """Return the address of the REST API for tasks, as last received from the cell."""
        return self._identity.api_url

    def authorization(self) -> str:
        """Return the `Authorization` header for the connection to the link."""
        self._tried_newest = self._newest
        secret = self._identity.next if self._newest else self._identity.secret
        return f"Bearer {self._identity.hostname}:{secret}"

    def bearer(self) -> str:
        """Return the `Authorization` header for all requests except the one that opens the link. The header contains
        the secret that the cell accepted last.
        """
        return f"Bearer {self._identity.hostname}:{self._identity.secret}"

    def refused(self) -> bool:
        """Record that the cell rejected the secret sent last. Return True if this was the new secret: the Borglet
        should then immediately try the old one.
        """
        self._newest = not self._tried_newest and bool(self._identity.next)
        return self._tried_newest

    def admitted(self) -> None:
        """Record that the cell accepted the secret sent last. If this secret is the newest, delete the old one."""
        if not self._tried_newest:
            return
        log.info("the cell accepted the new secret of this machine; the old secret is no longer valid")
        self._newest = False
        # If this write fails, both secrets are still on the disk, and the next Borglet tries the newest first.
        renewed = msgspec.structs.replace(self._identity, secret=self._identity.next, next="")
        self._keep(renewed)
        self._identity = renewed

    def offer(self) -> str:
        """Return the SHA-256 of the secret that will replace the present one. Create and store this new secret if it
        does not exist. Return "" if the new secret cannot be stored.
        """
        renewing = msgspec.structs.replace(self._identity, next=self._identity.next or secrets.token_urlsafe(32))
        if renewing != self._identity and not self._keep(renewing):
            return ""
        return hashlib.sha256(self._identity.next.encode()).hexdigest()

    def accepted(self, digest: str) -> bool:
        """Record that the cell will accept the secret with this digest. If this machine did not offer that secret,
        change nothing and return False.
        """
        if not self._identity.next or digest != self.offer():
            log.warning("the shard accepted a secret that this machine did not offer; the Borglet ignores this")
            return False
        self._newest = True
        return True

    def apply_welcome(self, *, authority: str, api_url: str) -> None:
        """Store the URL of the REST API and the certificate authorities that the cell sent in the message `Welcome`. An
        empty value means no change.
        """
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
        """Store `identity`, and use it from now on. If it cannot be stored, change nothing and return False."""
        try:
            self._keeper.keep_identity(identity)
        except OSError as error:
            log.error("cannot save the identity of this machine: %s", error)
            return False
        self._identity = identity
        return True


def pinned_context(authority: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only these authorities of a cell (PEM). Raises `BadAuthority` if their text is
    not valid PEM.
    """
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise BadAuthority(
            f"authority: the text is not a certificate in PEM form: {error}; give the whole text of the certificate"
        ) from error
    return context
