"""The URL in BORG_REDIS_URL: of one server, or of servers that Redis Sentinel watches.

    redis://host:6379/0   rediss://host:6379/0 (TLS)   unix:///path/to/socket
    redis+sentinel://[user:password@]host:26379,host:26379/NAME[/DATABASE]      rediss+sentinel://… (TLS)

`NAME` is the name of the master in the configuration of the sentinels. With Sentinel, each new connection asks the
sentinels which server is the master, so clients follow a failover. The user and the password are those of the Redis
servers and of the sentinels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_PORT = 26_379


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """The parts of a URL with sentinels. `name`: the name of the master in the configuration of the sentinels."""

    hosts: tuple[tuple[str, int], ...]
    name: str
    database: int = 0
    credentials: tuple[tuple[str, str], ...] = ()
    tls: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of each connection to a server or a sentinel."""
        return {**dict(self.credentials), **({"ssl": True} if self.tls else {})}


def read_sentinel_url(url: str) -> SentinelUrl | None:
    """Return the parts of a URL with sentinels, or None if it is another URL. Raises `ValueError` if it has no host, no
    name, or a port or database that is not a number. The error shows no part of the URL, which may contain a password.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES:
        return None
    place, _, path = rest.partition("/")
    given, _, hosts = place.rpartition("@")
    user, _, password = given.partition(":")
    name, _, database = path.partition("/")
    if not name:
        raise ValueError("the name of the master is missing; give redis+sentinel://host:26379,host:26379/NAME")
    found = []
    for host in hosts.split(","):
        parts = urlsplit(f"//{host}")
        try:
            fits = parts.hostname and parts.port != 0
        except ValueError:
            fits = False
        if not fits or parts.hostname is None:
            raise ValueError("a host or its port is wrong; give redis+sentinel://host:26379,host:26379/NAME")
        found.append((parts.hostname, parts.port or _PORT))
    if database and not database.isdecimal():
        raise ValueError("the database is not a number; give redis+sentinel://host:26379/NAME/0")
    credentials = {"username": unquote(user), "password": unquote(password)}
    return SentinelUrl(
        tuple(found),
        unquote(name),
        int(database or 0),
        tuple((key, value) for key, value in credentials.items() if value),
        tls=scheme == "rediss+sentinel",
    )


def celery_broker(url: str) -> tuple[str, dict[str, Any]]:
    """Return the URL and the transport options with which Celery uses the same servers."""
    found = read_sentinel_url(url)
    if found is None:
        return url.replace("unix://", "redis+socket://", 1), {}
    given = urlsplit(url).netloc.rpartition("@")[0]
    user = f"{given}@" if given else ""
    broker = ";".join(f"sentinel://{user}{host}:{port}/{found.database}" for host, port in found.hosts)
    return broker, {"master_name": found.name, "sentinel_kwargs": found.options}
