"""The URL in BORG_REDIS_URL: of one server, or of servers that Redis Sentinel watches.

    redis://host:6379/0   rediss://host:6379/0 (TLS)   unix:///path/to/socket
    redis+sentinel://[user:password@]host:26379,host:26379/NAME[/DATABASE]      rediss+sentinel://… (TLS)

`NAME` is the name of the master in the configuration of the sentinels. With Sentinel, each new connection asks the
sentinels which server is the master, so clients follow a failover. The user and the password are those of the Redis
servers and of the sentinels. With TLS, the query may name files, as in URLs of one server: `ssl_ca_certs` (the
authority that signed the certificates of the servers), `ssl_certfile` and `ssl_keyfile` (of this client).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_PORT = 26_379
# A host that is cut off answers no attempt to connect. The library's own limit is 5 s, as long as a whole failover.
CONNECT_S = 1.0
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """The parts of a URL with sentinels. `name`: the name of the master in the configuration of the sentinels. `files`:
    the files of TLS by the names of their parameters.
    """

    hosts: tuple[tuple[str, int], ...]
    name: str
    database: int = 0
    credentials: tuple[tuple[str, str], ...] = ()
    tls: bool = False
    files: tuple[tuple[str, str], ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of each connection to a server or a sentinel."""
        return {**dict(self.credentials), **({"ssl": True} if self.tls else {}), **dict(self.files)}


def read_sentinel_url(url: str) -> SentinelUrl | None:
    """Return the parts of a URL with sentinels, or None if it is another URL. Raises `ValueError` if it has no host, no
    name, an unknown parameter, or a port or database that is not a number. The error shows no part of the URL, which
    may contain a password.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES:
        return None
    rest, _, query = rest.partition("?")
    place, _, path = rest.partition("/")
    given, _, hosts = place.rpartition("@")
    user, _, password = given.partition(":")
    name, _, database = path.partition("/")
    if not name:
        raise ValueError(
            "the URL lacks the name under which Sentinel knows the Redis master; give redis+sentinel://host:26379,host:26379/NAME"
        )
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
        raise ValueError(
            "the part after NAME/ is not the number of a Redis database; give redis+sentinel://host:26379/NAME/0"
        )
    tls, files = scheme == "rediss+sentinel", parse_qsl(query, keep_blank_values=True)
    if any(not tls or key not in _FILES or not value for key, value in files):
        raise ValueError(
            "the URL has a wrong parameter; only URLs that begin with rediss+sentinel:// may have parameters, and only"
            f" {', '.join(f'{name}=FILE' for name in _FILES[:-1])} and {_FILES[-1]}=FILE"
        )
    credentials = {"username": unquote(user), "password": unquote(password)}
    return SentinelUrl(
        tuple(found),
        unquote(name),
        int(database or 0),
        tuple((key, value) for key, value in credentials.items() if value),
        tls=tls,
        files=tuple(files),
    )


def celery_broker(url: str) -> tuple[str, dict[str, Any]]:
    """Return the URL and the transport options with which Celery uses the same servers."""
    found = read_sentinel_url(url)
    if found is None:
        return url.replace("unix://", "redis+socket://", 1), {}
    given = urlsplit(url).netloc.rpartition("@")[0]
    user = f"{given}@" if given else ""
    broker = ";".join(f"sentinel://{user}{host}:{port}/{found.database}" for host, port in found.hosts)
    # If a sentinel does not answer, Celery asks the next one instead of the same one again.
    limits = {"socket_connect_timeout": CONNECT_S, "socket_timeout": CONNECT_S, "retry": None}
    return broker, {"master_name": found.name, "sentinel_kwargs": found.options | limits}


def celery_tls(url: str) -> dict[str, Any] | None:
    """Return the value of Celery's setting `broker_use_ssl`: the files of TLS, or None if the URL has no sentinels or
    no TLS. With the URL of one server, Celery reads them from the URL.
    """
    found = read_sentinel_url(url)
    return {"ssl_cert_reqs": "required", **dict(found.files)} if found and found.tls else None
