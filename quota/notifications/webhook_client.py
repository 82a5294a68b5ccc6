"""HTTP client for webhooks to addresses that tenants choose: only public addresses, with a short time limit.

Without these limits, a tenant could make the portal call addresses inside the operator's private network. The client
resolves a name once, checks every address, and connects to the checked address. The client does not follow redirects,
and reads only the status of the answer.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from quota.vocabulary.errors import invalid

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

TIMEOUT_S = 10.0
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# The public IPv6 networks. Other networks may lead to private IPv4 addresses or into a site (RFC 8215, RFC 6052).
_GLOBAL_IPV6 = (ipaddress.IPv6Network("2000::/3"), ipaddress.IPv6Network("::ffff:0:0/96"), _NAT64)
# Addresses that count as public, but at which clouds offer services to their own machines.
_OF_CLOUDS = (ipaddress.IPv4Network("168.63.129.16/32"), ipaddress.IPv4Network("192.0.0.0/24"))


class DeliveryFailed(Exception):
    """The error of a failed delivery, with a message for people. `final`: true if the receiver itself rejected the
    notice.
    """

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


class Receiver(NamedTuple):
    """The receiver of a webhook. `path`: the path and the query of the URL. `secure`: true for HTTPS."""

    secure: bool
    host: str
    port: int
    path: str


def receiver(url: str) -> Receiver:
    """Return the receiver to which webhooks for `url` are sent.

    Raises `Rejected` for the field `target` if the URL is not valid.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode("ascii") if not _literal(parts) else parts.hostname
    except ValueError as error:
        raise invalid(
            "target", f"{url[:100]!r} is not a URL ({error}); give one, such as https://example.org"
        ) from error
    if parts.scheme not in ("http", "https") or not host:
        raise invalid("target", f"{url[:100]!r} is not a web address; give one that begins with https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise invalid(
            "target", "the address contains a user or password; remove them, and let the receiver check the signature"
        )
    if parts.fragment:
        raise invalid("target", "the address contains '#'; remove '#' and the text after it")
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise invalid(
            "target", "the address contains a space or a character that is not ASCII; write it as a code such as %20"
        )
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Receiver(secure, host, port or (443 if secure else 80), path)


def may_call(address: str, allowed: Sequence[IPNetwork]) -> bool:
    """Return whether `address` is public, or in a network that the settings allow."""
    found: IPAddress = ipaddress.ip_address(address.partition("%")[0])
    inner = _inner(found)
    if any(found in network or inner in network for network in allowed):
        return True
    return all(_is_open(one) for one in (found, inner))


def post(
    to: Receiver, body: bytes, headers: Mapping[str, str], *, allowed: Sequence[IPNetwork], timeout_s: float = TIMEOUT_S
) -> int:
    """Send a POST request and return the status of the answer. Raises `DeliveryFailed` if there is no answer, or if its
    status is 300 or higher.

    The call takes at most `timeout_s` plus the time limit of the name resolver. `allowed`: private networks that may be
    called.
    """
    connection = _Connection(to, allowed, timeout_s)
    watch = threading.Timer(timeout_s, connection.cut)
    watch.daemon = True
    watch.start()
    try:
        connection.request("POST", to.path, body, dict(headers))
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        if connection.was_cut or isinstance(error, TimeoutError):
            raise DeliveryFailed(
                f"{to.host} did not answer within {timeout_s:g} seconds; check that the receiver runs"
            ) from error
        raise DeliveryFailed(
            f"cannot send to {to.host}: {error or type(error).__name__}; check the address and the receiver"
        ) from error
    finally:
        watch.cancel()
        connection.close()
    if 300 <= status < 400:
        raise DeliveryFailed(
            f"{to.host} answered {status}, a redirect; give the address to which it redirects", final=True
        )
    if status >= 400:
        raise DeliveryFailed(
            f"{to.host} answered {status}; check the receiver", final=status < 500 and status not in (408, 425, 429)
        )
    return status


class _Connection(http.client.HTTPConnection):
    """An HTTP connection to a host. It connects to an IP address of the host that has been checked."""

    def __init__(self, to: Receiver, allowed: Sequence[IPNetwork], timeout_s: float) -> None:
        super().__init__(to.host, to.port, timeout=timeout_s)
        self._to, self._allowed = to, allowed
        self.was_cut = False

    def connect(self) -> None:
        self.sock = self._reach()
        if self._to.secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self._to.host)

    def cut(self) -> None:
        """Shut down the socket, so that a call that waits for data fails immediately.

        A timer calls this method in another thread.
        """
        self.was_cut = True
        if self.sock is not None:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:  # the socket is already closed
                return

    def _reach(self) -> socket.socket:
        try:
            found = socket.getaddrinfo(self._to.host, self._to.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise DeliveryFailed(
                f"cannot resolve the host name {self._to.host} ({error}); check the address"
            ) from error
        open_to = [entry for entry in found if may_call(str(entry[4][0]), self._allowed)]
        if not open_to:
            raise DeliveryFailed(
                f"the address of {self._to.host} is in a private network; give a public address, or ask an SRE to allow"
                " the network (BORG_WEBHOOK_NETWORKS)"
            )
        problem = OSError("the time limit ended before a connection was tried")
        for family, kind, protocol, _name, address in open_to:
            if self.was_cut:
                break
            made = socket.socket(family, kind, protocol)
            made.settimeout(self.timeout)
            self.sock = made  # so that the timer reaches it
            try:
                made.connect(address)
            except OSError as error:
                made.close()
                problem = error
            else:
                return made
        raise problem


def _is_open(address: IPAddress) -> bool:
    if not address.is_global or address.is_multicast:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _OF_CLOUDS)
    return any(address in network for network in _GLOBAL_IPV6)


def _inner(address: IPAddress) -> IPAddress:
    """Return the IPv4 address inside an IPv6 address, or the address itself if it contains none."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (address, address))[1]


def _literal(parts: SplitResult) -> bool:
    return ":" in (parts.hostname or "")
