"""Checks of settings. A check is a function of a setting's value. It returns "" if the value is valid. Otherwise
it returns a text with the problem and what to do.

A check that needs dnspython imports it only when it runs, so that other processes start quickly.
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
_MOST_ZONE = 120  # characters; most names put up to three labels before the zone, within 253 characters in all


def rule(complaint: str, fits: Callable[[str], object]) -> Check:
    """Return a check that uses `fits` to test the value. If `fits` returns a false value or raises `ValueError`, the
    check returns the text `complaint`.
    """

    def check(text: str) -> str:
        try:
            return "" if fits(text) else complaint
        except ValueError:
            return complaint

    return check


def anything(_: str) -> str:
    """Accept every value."""
    return ""


def number(least: int, most: int) -> Check:
    """Return a check that accepts whole numbers from `least` to `most`."""

    def check(text: str) -> str:
        try:
            wrong = "" if least <= int(text) <= most else "the number is out of range"
        except ValueError:
            wrong = "the value is not a whole number"
        return wrong and f"{wrong}; give a number from {least} to {most}"

    return check


port = number(1, 65_535)


def one_of(*known: str) -> Check:
    """Return a check that accepts only the values in `known`."""
    return lambda text: "" if text in known else f"the value is unknown; give {', '.join(known[:-1])} or {known[-1]}"


# The values that `environment.flag` reads as yes or no. It would read any other value as no.
flag = rule(
    "the value is neither yes nor no; give 1 or 0",
    lambda text: text.lower() in ("0", "1", "true", "false", "yes", "no", "on", "off"),
)
address = rule(
    "the value is not an IP address; give one such as 127.0.0.1, or 0.0.0.0 for all of this host", ip_address
)


host = rule(
    "the value is not a host; give only the name or address of a host, without a port or https://",
    lambda text: (_HOST.fullmatch(text) and not text.startswith((".", "*"))) or not address(text),
)


def parts(check: Check) -> Check:
    """Return a check of a comma-separated list. It applies `check` to each part of the list, and stops at the first
    problem.
    """

    def check_all(text: str) -> str:
        for part in filter(None, (part.strip() for part in text.split(","))):
            if wrong := check(part):
                return wrong if part == text else f"{part!r} is wrong: {wrong}"
        return ""

    return check_all


pattern_of_hosts = rule(
    "the value is not a host name; give only names such as borg.example, without a port or https://, or * for any host",
    _HOST.fullmatch,
)


def network(text: str) -> str:
    """Return "" if `text` is an IP network, such as 10.1.0.0/16. Otherwise return the problem."""
    try:
        ip_network(text)
    except ValueError as error:
        return f"the value is not a network ({error}); give networks such as 10.1.0.0/16, separated by commas"
    return ""


def url(*schemes: str, bare: bool = False) -> Check:
    """Return a check that accepts URLs with one of the given schemes.

    `bare`: whether the URL must end after the host and port, without a slash.
    """

    def check(text: str) -> str:
        example = f"give a URL such as {schemes[0]}://borg.example:8443"
        try:
            found = urlsplit(text)
            fits = found.scheme in schemes and found.hostname and found.port != 0
        except ValueError:
            return f"the value cannot be read as a URL; {example}"
        if not fits or text != text.strip():
            known = " or ".join(f"{scheme}://" for scheme in schemes)
            return f"the value is not a URL with {known} and a host; {example}"
        return f"a path follows the host; {example}, without a path" if bare and found.path + found.query else ""

    return check


_WRITABLE = ("read-write", "primary")


def database(text: str) -> str:
    """Return "" if the text is a libpq URI of one host or of several hosts. Otherwise return the problem."""
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    example = "give one such as postgresql://user:password@host:5432/borg, or @host1:5432,host2:5432/borg"
    try:
        found = conninfo_to_dict(text) if text.startswith(("postgresql://", "postgres://")) else None
    except Error:
        found = None
    if found is None:
        return f"the value is not a libpq URI; {example}"
    hosts, ports = (str(found.get(name) or "").split(",") for name in ("host", "port"))
    if ports != [""] and any(port(one) for one in ports):
        return f"a port is not a number from 1 to 65535; {example}"
    if len(ports) not in (1, len(hosts)):
        return f"there are {len(hosts)} hosts but {len(ports)} ports; give one port, or one per host"
    session = found.get("target_session_attrs", _WRITABLE[0])
    if len(hosts) > 1 and session not in _WRITABLE:
        known = " or ".join(_WRITABLE)
        return f"with target_session_attrs={session}, a standby may get the writes; give {known}, or leave it out"
    return ""


def _is_redis(text: str) -> bool:
    """Return whether the Redis client accepts the URL. A URL without a host (redis:///0) means Redis on this host."""
    found = urlsplit(text)
    fits = found.path.startswith("/") if found.scheme == "unix" else found.port != 0
    return fits and text.startswith(("redis://", "rediss://", "unix://"))


_one_redis = rule(
    "the value is not a Redis URL; give redis://host:6379/0, rediss://… for TLS, unix:///path/to/socket, or"
    " redis+sentinel://host:26379,host:26379/NAME",
    _is_redis,
)


def redis(text: str) -> str:
    """Return "" if the text is the URL of a Redis server, or of sentinels. Otherwise return the problem."""
    from serving.redis_url import read_sentinel_url

    try:
        return "" if read_sentinel_url(text) else _one_redis(text)
    except ValueError as error:
        return str(error)


KEY_CURE = "give at least 50 random characters, from python3 -c 'import secrets; print(secrets.token_urlsafe(64))'"


def secret_key(text: str) -> str:
    """Return "" if the key has at least 50 characters. Otherwise return the problem."""
    return "" if len(text) >= 50 else f"the value has {len(text)} characters; {KEY_CURE}"


label = rule(
    "the value is not a DNS label; give at most 63 lower-case letters, digits and inner hyphens", _LABEL.fullmatch
)
zone = rule(
    "the value is not a DNS name in lower case; give a name such as borg.internal,"
    f" without a dot at its end, of at most {_MOST_ZONE} characters",
    lambda text: len(text) <= _MOST_ZONE and all(_LABEL.fullmatch(part) for part in text.split(".")),
)
# Files and folders may be missing: the file may be on another host with the same settings, and a start creates folders.
file = rule("the value is a folder; give the path of a file", lambda text: not Path(text).is_dir())
folder = rule("the value is a file; give the path of a folder", lambda text: not Path(text).is_file())
folder_there = rule("the folder does not exist; create it, or give another folder", lambda text: Path(text).is_dir())
nsid = rule(f"the value is too long; give at most {MOST_NSID} octets", lambda text: len(text.encode()) <= MOST_NSID)


def _is_mailbox(text: str) -> bool:
    _, at = parseaddr(text)
    return text.isprintable() and "@" in at and not at.startswith("@") and not at.endswith("@")


mailbox = rule("the value is not a mail address; give one such as Borg Portal <borg@example.org>", _is_mailbox)


def _is_file_store(text: str) -> bool:
    found = urlsplit(text)
    in_folder = found.scheme == "file" and found.netloc in ("", "localhost") and found.path.startswith("/")
    return in_folder or bool(found.scheme == "s3" and found.netloc)


file_store = rule("the value is not a store; give file:///folder or s3://bucket/prefix", _is_file_store)


def archive_keys(text: str) -> str:
    """Return "" if the text is a list of keys that can encrypt the archive or secrets. Otherwise return the problem, in
    a text that shows no key.
    """
    from scheduling.storage.sealed import read_keys

    try:
        read_keys(text)
    except ValueError as error:
        create = "python3 -c 'import base64, secrets; print(base64.b64encode(secrets.token_bytes(32)).decode())'"
        return f"{error}; create each key with {create}, and separate keys by commas"
    return ""


def reverse_networks(text: str) -> str:
    """Return "" if the text is `none` or a comma-separated list of IP networks, none of which is /0. Otherwise return
    the problem.
    """
    return "" if text.strip() == "none" else parts(_own_network)(text)


def _own_network(text: str) -> str:
    return network(text) or (
        "the network contains all addresses; give your own networks" if ip_network(text).prefixlen == 0 else ""
    )


def _is_server(text: str) -> bool:
    at, separator, number = text.partition("@")
    return not address(at) and not (separator and port(number))


server = rule("the value is not a name server; give an address, or 192.0.2.1@5353 for another port than 53", _is_server)


def caa(text: str) -> str:
    """Return "" if the text is empty or contains only valid CAA records. Otherwise return the problem."""
    from naming.dns.zones.zone_settings import InvalidZones, read_caa

    try:
        read_caa(text)
    except InvalidZones as error:
        return str(error).removeprefix("BORG_DNS_CAA: ")
    return ""


def keys(text: str) -> str:
    """Return "" if the text is a list of TSIG keys that a resolver can use. Otherwise return the problem, in a text
    that shows no key.
    """
    from naming.dns.primary import InvalidPeers, Peers

    try:
        Peers.read(networks=(), keys=[key for key in text.split(",") if key.strip()], secondaries=())
    except InvalidPeers:  # the text of the error may contain a key
        return "a key cannot be read; give name:hmac-sha256:base64 (or hmac-sha384, hmac-sha512), separated by commas"
    return ""


def oidc_roles(text: str) -> str:
    """Return "" if the text lists rights of groups of an identity provider. Otherwise return the problem."""
    from quota.vocabulary.provider_groups import GroupRoles

    try:
        GroupRoles.read(text)
    except ValueError as error:
        return f"{error}; separate the parts by commas"
    return ""
