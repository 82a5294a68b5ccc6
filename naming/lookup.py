"""One question to the resolver, asked by the web process: how far have the names followed?"""

from __future__ import annotations

import re

import dns.exception
import dns.flags
import dns.message
import dns.query
import dns.rcode
from django.conf import settings

from quota.errors import NotFound, Refused

_TIMEOUT_S = 2.0
_REVISION = re.compile(rb"revision=([0-9]+)")


def published_revision(zone: str) -> int:
    """The revision in the TXT record of a cell's zone. Raises `NotFound`; `Refused` (503) without an answer."""
    question = dns.message.make_query(zone, "TXT")
    try:
        answer = dns.query.udp(
            question, settings.BORG_DNS_HOST, timeout=_TIMEOUT_S, port=settings.BORG_DNS_PORT
        )
    except (dns.exception.DNSException, OSError) as error:
        raise Refused(
            "resolver-silent", f"the resolver does not answer: {type(error).__name__}; try again", status=503
        ) from error
    if answer.rcode() in (dns.rcode.NXDOMAIN, dns.rcode.REFUSED):
        raise NotFound("zone", zone)
    texts = [text for rrset in answer.answer for record in rrset for text in getattr(record, "strings", ())]
    found = [match for text in texts if (match := _REVISION.search(text))]
    if not found:
        raise Refused("resolver-loading", f"the resolver has not read {zone} yet; try again", status=503)
    return int(found[0].group(1))
