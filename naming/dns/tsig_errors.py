"""Builds the answer to a query whose signature is not valid: the response code NOTAUTH and the TSIG error (RFC 8945
§5.2). Pure.
"""

from __future__ import annotations

import struct
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rdtypes.ANY.TSIG
import dns.tsig

from naming.dns.protocol import wire
from naming.dns.zones.directory import ZoneDirectory

# Errors of dnspython, and their codes in an answer.
ERRORS: dict[type[Exception], int] = {
    dns.message.UnknownTSIGKey: dns.rcode.BADKEY,
    dns.tsig.BadKey: dns.rcode.BADKEY,
    dns.tsig.BadAlgorithm: dns.rcode.BADKEY,
    dns.tsig.BadSignature: dns.rcode.BADSIG,
    dns.tsig.BadTime: dns.rcode.BADTIME,
}
_tsig: Any = dns.rdtypes.ANY.TSIG.TSIG  # untyped in dnspython
_sign: Any = dns.tsig.sign


def error_answer(query: bytes, error: int, directory: ZoneDirectory, now: int) -> bytes:
    """Return an answer with the question of `query` and the TSIG error code `error`. `now`: seconds since the epoch.

    If only the time of the signature is wrong, the answer is signed and contains this server's time. For other errors,
    the answer is not signed, because the client has not proved that it has the key.
    """
    message = dns.message.from_wire(query, keyring=False)
    assert message.tsig is not None
    owner, received = message.tsig.name, message.tsig[0]
    question = message.question[0]
    flags = dns.flags.QR | message.flags & (0x7800 | dns.flags.RD) | dns.rcode.NOTAUTH
    asked = (question.name.to_wire() or b"") + struct.pack("!HH", question.rdtype, question.rdclass)
    plain = wire.HEADER.pack(message.id, flags, 1, 0, 0, 0) + asked
    other = now.to_bytes(6) if error == dns.rcode.BADTIME else b""
    detail = _tsig(
        dns.rdataclass.ANY,
        dns.rdatatype.TSIG,
        received.algorithm,
        received.time_signed,
        received.fudge,
        b"",
        message.id,
        error,
        other,
    )
    if error == dns.rcode.BADTIME:
        detail, _ = _sign(plain, directory.keyring[owner], detail, received.time_signed, received.mac)
    data = detail.to_wire()
    signature = (owner.to_wire() or b"") + wire.FIXED.pack(dns.rdatatype.TSIG, dns.rdataclass.ANY, 0, len(data))
    whole: bytes = plain[:10] + b"\0\1" + plain[12:] + signature + data
    return whole
