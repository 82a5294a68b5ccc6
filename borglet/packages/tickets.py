"""Tickets of the cell. With a ticket, a machine can download one package from other machines for some minutes.

link ── ticket, signed with the authority's key ──► client ── ticket ──► peer: checks it with the authority's
                                                                         certificate
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from borglet.identity.signatures import ALGORITHM, is_signed
from borglet.messages import PackageTicket

# The signed prefix of each ticket. Without it, another text that the authority signs could be used as a ticket.
CONTEXT = b"borg package ticket 1\n"
MAX_TICKET_BYTES = 2048


class TicketRefused(Exception):
    """The error if a machine's ticket does not permit the requested download. The message contains the reason."""


def issue(key: ec.EllipticCurvePrivateKey, ticket: PackageTicket) -> str:
    """Sign a ticket with the key of the cell's authority, and return its text."""
    claims = msgspec.json.encode(ticket)
    return f"{_text(claims)}.{_text(key.sign(CONTEXT + claims, ALGORITHM))}"


def check(text: str, keys: Sequence[ec.EllipticCurvePublicKey], *, digest: str, now: float) -> PackageTicket:
    """Decode the ticket in `text`, check it, and return it. `digest`: the digest of the requested package. `now`:
    seconds since the epoch.

    Raises `TicketRefused` if no key of `keys` signed the ticket, it is for another package, or it has expired.
    """
    first, dot, second = text.partition(".")
    if not dot or len(text) > MAX_TICKET_BYTES:
        raise TicketRefused("the ticket is missing or unreadable; request a new ticket from the cell's link server")
    try:
        claims, signature = _bytes(first), _bytes(second)
    except (binascii.Error, ValueError) as error:
        raise TicketRefused(
            "the ticket is not valid base64; request a new ticket from the cell's link server"
        ) from error
    if not is_signed(keys, CONTEXT + claims, signature):
        raise TicketRefused(
            "the ticket is not signed by this cell's authority; request a new ticket from this cell's link server"
        )
    ticket = msgspec.json.decode(claims, type=PackageTicket)
    if ticket.digest != digest:
        raise TicketRefused(
            f"the ticket is for {ticket.digest}, which is another package; request a ticket for {digest}"
        )
    if ticket.expires_at <= now:
        raise TicketRefused(
            f"the ticket expired {now - ticket.expires_at:.0f} s ago; request a new ticket from the cell's link server"
        )
    return ticket


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
