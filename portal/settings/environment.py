"""Every setting that the environment may give, read in one place.

`deploy/borg.env` explains each for operators; a test compares the two.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import NoReturn

from portal.settings import checks
from portal.settings.checks import Check


@dataclass(frozen=True, slots=True)
class Setting:
    """`name` in the environment, the value without it, what it is for, what makes sense. `secret` is never shown."""

    name: str
    default: str
    about: str
    check: Check
    secret: bool = False

    def complaint(self, value: str) -> str:
        """One line with setting, value and cure; "" where it makes sense."""
        wrong = self.check(value) if value not in ("", self.default) else ""
        told = self.name if self.secret else f"{self.name}={value!r}"
        return wrong and f"{told}: {wrong} ({self.about.rstrip('.')})."


SETTINGS: tuple[Setting, ...] = (
    Setting("BORG_HOME", ".borg", "Folder that holds all data of this host.", checks.folder),
    Setting(
        "BORG_DATABASE_URL", "postgresql:///borg", "PostgreSQL, as libpq URI.", checks.database, secret=True
    ),
    Setting(
        "BORG_DATABASE_POOL",
        "0",
        "Connections that a web process shares among its requests; 0: one a thread.",
        checks.number(0, 1_000),
    ),
    Setting(
        "BORG_REQUEST_DEADLINE_S",
        "50",
        "Seconds within which a web process answers a request, if only with 503.",
        checks.number(5, 600),
    ),
    Setting(
        "BORG_REDIS_URL",
        "redis://127.0.0.1:6379/0",
        "Redis; unix:///path/to/socket too.",
        checks.redis,
        secret=True,
    ),
    Setting(
        "BORG_SECRET_KEY",
        "",
        "Signs sessions and cookies; at least 50 random characters.",
        checks.secret_key,
        secret=True,
    ),
    Setting("BORG_DEBUG", "0", "1 shows error pages to everybody: development only.", checks.flag),
    Setting(
        "BORG_ALLOWED_HOSTS",
        "127.0.0.1,localhost,[::1]",
        "Host names the portal answers to, by comma.",
        checks.parts(checks.pattern_of_hosts),
    ),
    Setting(
        "BORG_PORTAL_URL",
        "http://127.0.0.1:8000",
        "Where people and clients reach the portal.",
        checks.url("https", "http", bare=True),
    ),
    Setting(
        "BORG_HSTS_SECONDS",
        "31536000",
        "Seconds for which browsers reach an https BORG_PORTAL_URL by TLS only (HSTS); 0: not told.",
        checks.number(0, 2**31 - 1),
    ),
    Setting(
        "BORG_ZONE", "borg.internal", "DNS zone above all cells: <cell>.<zone> is a cell's.", checks.zone
    ),
    Setting("BORG_DNS_HOST", "127.0.0.1", "Address the resolver listens on.", checks.address),
    Setting("BORG_DNS_PORT", "5353", "Port the resolver listens on, UDP and TCP.", checks.port),
    Setting(
        "BORG_DNS_RESOLVERS",
        "",
        "All resolvers, as address or address@port, by comma; empty: the one at BORG_DNS_HOST and its port.",
        checks.parts(checks.server),
    ),
    Setting(
        "BORG_DNS_TTL",
        "5",
        "Seconds that clients may remember a name, unless its job says otherwise.",
        checks.number(0, 86_400),
    ),
    Setting(
        "BORG_DNS_NEGATIVE_TTL",
        "5",
        "Seconds that clients may remember that a name is not there.",
        checks.number(0, 86_400),
    ),
    Setting(
        "BORG_DNS_REVERSE",
        "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,198.18.0.0/15,127.0.0.0/8,fc00::/7,::1/128",
        "Networks whose reverse names (PTR) the resolver answers, by comma; none: of no network.",
        checks.reverse_networks,
    ),
    Setting(
        "BORG_DNS_CAA",
        "",
        'CAA records of the zones, such as 0 issue "ca.example", by semicolon.',
        checks.caa,
    ),
    Setting(
        "BORG_DNS_TRANSFER",
        "",
        "Networks that may transfer cells' zones, by comma; empty: none.",
        checks.parts(checks.network),
    ),
    Setting(
        "BORG_DNS_KEYS",
        "",
        "TSIG keys whose holders may transfer zones, as name:hmac-sha256:base64, by comma.",
        checks.keys,
        secret=True,
    ),
    Setting(
        "BORG_DNS_NSID",
        "",
        "What a resolver calls itself to clients that ask (NSID); empty: nothing.",
        checks.nsid,
    ),
    Setting(
        "BORG_DNS_RATE",
        "0",
        "UDP answers a second to one network that is not private and has no cookie; 0: any number.",
        checks.number(0, 10_000_000),
    ),
    Setting(
        "BORG_DNS_SECONDARIES",
        "",
        "Name servers told of changes, as address or address@port, by comma.",
        checks.parts(checks.server),
    ),
    Setting(
        "BORG_DNS_PROCESSES",
        "1",
        "Processes of a resolver that share its port, one a core.",
        checks.number(1, 256),
    ),
    Setting(
        "BORG_DNS_METRICS_HOST", "127.0.0.1", "Address where a resolver tells its figures.", checks.address
    ),
    Setting(
        "BORG_DNS_METRICS_PORT",
        "0",
        "Port where a resolver tells its figures, as /metrics over HTTP; 0: none.",
        checks.number(0, 65_535),
    ),
    Setting(
        "BORG_DNS_SNAPSHOT",
        "",
        "Folder where a resolver keeps names for its next start; empty: names/ in BORG_HOME; off: none.",
        checks.folder,
    ),
    Setting(
        "BORG_DNS_STALE",
        "30",
        "Seconds without PostgreSQL after which a resolver calls its answers stale.",
        checks.number(1, 86_400),
    ),
    Setting("BORG_LINK_HOST", "127.0.0.1", "Address a link shard listens on.", checks.host),
    Setting("BORG_LINK_PORT", "8443", "Port a link shard listens on.", checks.port),
    Setting(
        "BORG_LINK_SHARED_PORT",
        "0",
        "1: link shards of one host share BORG_LINK_PORT; run any number of them.",
        checks.flag,
    ),
    Setting(
        "BORG_LINK_URL",
        "https://127.0.0.1:8443",
        "Where Borglets reach the link shards, all as one.",
        checks.url("https"),
    ),
    Setting(
        "BORG_AUTHORITY", "", "Folder of the TLS authority; empty: authority/ in BORG_HOME.", checks.folder
    ),
    Setting(
        "BORG_PACKAGE_STORE",
        "",
        "Where packages are kept: file:///folder or s3://bucket/prefix; empty: packages/ in BORG_HOME.",
        checks.package_store,
    ),
    Setting(
        "BORG_LINK_CERTIFICATE",
        "",
        "File with the chain of a link certificate issued elsewhere; empty: the authority here issues one.",
        checks.file,
    ),
    Setting("BORG_LINK_KEY", "", "File with its key; empty: it is in the same file.", checks.file),
    Setting("BORG_SMTP_HOST", "", "Mail server; empty: mail is printed, into the worker's log.", checks.host),
    Setting("BORG_SMTP_PORT", "587", "Port of the mail server.", checks.port),
    Setting(
        "BORG_SMTP_TLS",
        "starttls",
        "starttls, tls (from the first byte, port 465) or none.",
        checks.one_of("starttls", "tls", "none"),
    ),
    Setting(
        "BORG_SMTP_USER",
        "",
        "Who the portal is to the mail server; empty: it does not sign in.",
        checks.anything,
    ),
    Setting("BORG_SMTP_PASSWORD", "", "Its password there.", checks.anything, secret=True),
    Setting("BORG_MAIL_FROM", "Borg Portal <borg-portal@localhost>", "Whom mail comes from.", checks.mailbox),
    Setting(
        "BORG_WEBHOOK_NETWORKS",
        "",
        "Private networks that webhooks may reach, by comma, such as 10.1.0.0/16; empty: none.",
        checks.parts(checks.network),
    ),
    Setting(
        "BORG_USAGE_KEEP_HOURS",
        "24",
        "Hours that five-minute windows of usage are kept, 3 at least.",
        checks.number(3, 87_600),
    ),
    Setting(
        "BORG_MAX_BODY_BYTES", "33554432", "Largest request body that is read.", checks.number(1_024, 2**31)
    ),
    Setting(
        "BORG_MAX_TASKS_PER_JOB", "100000", "Largest number of tasks of one job.", checks.number(1, 2**20)
    ),
    Setting(
        "BORG_MAX_BULK_JOBS",
        "10000",
        "Largest number of jobs in one bulk submission.",
        checks.number(1, 1_000_000),
    ),
    Setting(
        "BORG_MAX_WATCHES",
        "5000",
        "Live pages, WebSockets and long polls of names that one web process holds at a time.",
        checks.number(1, 1_000_000),
    ),
    Setting(
        "BORG_MAX_WATCHES_PER_CALLER",
        "1000",
        "How many of them one user, service account or task has in one web process.",
        checks.number(1, 1_000_000),
    ),
    Setting(
        "PROMETHEUS_MULTIPROC_DIR",
        "",
        "Folder where the processes of a host share figures; empty: none.",
        checks.folder_there,
    ),
    Setting(
        "BORG_LOG_LEVEL",
        "INFO",
        "DEBUG, INFO, WARNING or ERROR.",
        checks.one_of("DEBUG", "INFO", "WARNING", "ERROR"),
    ),
    Setting(
        "BORG_CELLS",
        "",
        "Cells that this process serves, by comma; empty: all of the database.",
        checks.parts(checks.label),
    ),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


BAD_SETTING = 2  # exit status


def complaints(environ: Mapping[str, str]) -> Iterator[str]:
    """A line for each setting that makes no sense."""
    for setting in SETTINGS:
        if told := setting.complaint(environ.get(setting.name, "")):
            yield told


def check(environ: Mapping[str, str] = os.environ) -> None:
    """End the process, whichever it is, where a setting makes no sense: nobody is to read a traceback to find it."""
    if told := list(complaints(environ)):
        refuse(*told)


def refuse(*lines: str) -> NoReturn:
    print(*lines, sep="\n", file=sys.stderr)
    raise SystemExit(BAD_SETTING)


def text(name: str) -> str:
    return os.environ.get(name) or _BY_NAME[name].default


def number(name: str) -> int:
    return int(text(name))


def networks(name: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(part) for part in names(name))


def folder(name: str, below: str) -> Path | None:
    """Where something is kept: `below` in BORG_HOME unless said otherwise; `off` for nowhere."""
    value = text(name)
    if value == "off":
        return None
    return Path(value).resolve() if value else home() / below


def flag(name: str) -> bool:
    return text(name).lower() in ("1", "true", "yes", "on")


def names(name: str) -> list[str]:
    return [part.strip() for part in text(name).split(",") if part.strip()]


def home() -> Path:
    return Path(text("BORG_HOME")).resolve()
