"""What settings may say. A check takes the text of one and tells what is wrong and what to give; "" for nothing.

Quick where a setting is not used: what needs dnspython loads it only to read what was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from email.utils import parseaddr
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

Check = Callable[[str], str]

MOST_NSID = 64  # octets
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HOST = re.compile(r"\*|\.?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\]")
_MOST_ZONE = 120  # characters: three labels of 63 are still to come before it, within 253 for most


def anything(_: str) -> str:
    return ""


def number(least: int, most: int) -> Check:
    def check(text: str) -> str:
        try:
            return "" if least <= int(text) <= most else f"give a number from {least} to {most}"
        except ValueError:
            return f"is no whole number; give one from {least} to {most}"

    return check


port = number(1, 65_535)


def one_of(*known: str) -> Check:
    return lambda text: "" if text in known else f"give {', '.join(known[:-1])} or {known[-1]}"


def flag(text: str) -> str:
    """As `environment.flag` reads it: anything else would mean no."""
    return "" if text.lower() in ("0", "1", "true", "false", "yes", "no", "on", "off") else "give 1 or 0"


def address(text: str) -> str:
    try:
        ip_address(text)
    except ValueError:
        return "is no address; give one such as 127.0.0.1, or 0.0.0.0 for all of this host"
    return ""


def host(text: str) -> str:
    fits = _HOST.fullmatch(text) and not text.startswith((".", "*"))
    return (
        "" if fits or not address(text) else "give a host's name or address alone, without a port or https://"
    )


def parts(check: Check) -> Check:
    """Of a list by comma; the first that is wrong is told."""

    def check_all(text: str) -> str:
        for part in filter(None, (part.strip() for part in text.split(","))):
            if wrong := check(part):
                return wrong if part == text else f"{part!r} {wrong}"
        return ""

    return check_all


def pattern_of_hosts(text: str) -> str:
    if _HOST.fullmatch(text):
        return ""
    return "give names of hosts alone, such as borg.example, without a port or https://; * for any"


def network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        return f"is no network ({error}); give networks such as 10.1.0.0/16, by comma"
    return ""


def url(*schemes: str, bare: bool = False) -> Check:
    """`bare`: no path behind the host, not even a slash."""

    def check(text: str) -> str:
        example = f"give an address such as {schemes[0]}://borg.example:8443"
        try:
            found = urlsplit(text)
            fits = found.scheme in schemes and found.hostname and found.port != 0
        except ValueError:
            return f"can't be read; {example}"
        if not fits or text != text.strip():
            return f"{example}, with {' or '.join(f'{scheme}://' for scheme in schemes)}"
        return f"leave out what follows the host; {example}" if bare and found.path + found.query else ""

    return check


def database(text: str) -> str:
    try:
        found = urlsplit(text)
        fits = found.scheme in ("postgresql", "postgres") and found.port != 0
    except ValueError:
        fits = False
    return "" if fits else "give a libpq URI such as postgresql://user:password@host:5432/borg"


def redis(text: str) -> str:
    try:
        found = urlsplit(text)
        fits = found.path.startswith("/") if found.scheme == "unix" else found.port != 0
    except ValueError:
        fits = False
    fits = fits and text.startswith(("redis://", "rediss://", "unix://"))  # without a host it is this one
    return "" if fits else "give redis://host:6379/0, rediss://… for TLS, or unix:///path/to/socket"


def secret_key(text: str) -> str:
    return "" if len(text) >= 50 else f"has {len(text)} characters; {KEY_CURE}"


KEY_CURE = "give at least 50 random ones, from python3 -c 'import secrets; print(secrets.token_urlsafe(64))'"


def label(text: str) -> str:
    if _LABEL.fullmatch(text):
        return ""
    return "is no DNS label; give lower-case letters, digits and inner hyphens, at most 63"


def zone(text: str) -> str:
    if len(text) <= _MOST_ZONE and all(_LABEL.fullmatch(part) for part in text.split(".")):
        return ""
    return f"give a DNS name in lower case without a dot at its end, such as borg.internal, at most {_MOST_ZONE} long"


def file(text: str) -> str:
    """It may be on another host that has the same settings."""
    return "is a folder; give the path of a file" if Path(text).is_dir() else ""


def folder(text: str) -> str:
    """It may be yet to be made."""
    return "is a file; give the path of a folder" if Path(text).is_file() else ""


def folder_there(text: str) -> str:
    return "" if Path(text).is_dir() else "is no folder; make it, or give another"


def nsid(text: str) -> str:
    return "" if len(text.encode()) <= MOST_NSID else f"give at most {MOST_NSID} octets"


def mailbox(text: str) -> str:
    _, at = parseaddr(text)
    fits = text.isprintable() and "@" in at and not at.startswith("@") and not at.endswith("@")
    return "" if fits else "give an address such as Borg Portal <borg@example.org>"


def package_store(text: str) -> str:
    found = urlsplit(text)
    if found.scheme == "file" and found.netloc in ("", "localhost") and found.path.startswith("/"):
        return ""
    if found.scheme == "s3" and found.netloc:
        return ""
    return "give file:///folder or s3://bucket/prefix"


def reverse_networks(text: str) -> str:
    return "" if text.strip() == "none" else parts(_own_network)(text)


def _own_network(text: str) -> str:
    return network(text) or (
        "is every address there is; give your own" if ip_network(text).prefixlen == 0 else ""
    )


def server(text: str) -> str:
    """A name server: an address, with another port than 53 as 192.0.2.1@5353."""
    at, separator, number = text.partition("@")
    fits = not address(at) and not (separator and port(number))
    return "" if fits else "give addresses, with another port than 53 as 192.0.2.1@5353, by comma"


def caa(text: str) -> str:
    from naming.dns.zones.zone_settings import InvalidZones, read_caa

    try:
        read_caa(text)
    except InvalidZones as error:
        return str(error).removeprefix("BORG_DNS_CAA: ")
    return ""


def keys(text: str) -> str:
    from naming.dns.primary import InvalidPeers, Peers

    try:
        Peers.read(networks=(), keys=[key for key in text.split(",") if key.strip()], secondaries=())
    except InvalidPeers:  # whose text may hold what is secret
        return "give keys as name:hmac-sha256:base64, by comma; also hmac-sha384 and hmac-sha512"
    return ""
