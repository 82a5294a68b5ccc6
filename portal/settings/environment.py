"""All settings, read from the environment variables.

`deploy/borg.env` explains each setting to operators. A test checks that the file and this module list the
same settings.
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
    """A setting of the portal: its default value, its description (`about`), its check, and whether it is `secret`.
    Error messages never contain the value of a secret setting.
    """

    default: str
    about: str
    check: Check
    secret: bool = False

    def complaint(self, name: str, value: str) -> str:
        """Return a text with the name, the value, the problem and what to do, or "" if the value is valid."""
        wrong = self.check(value) if value not in ("", self.default) else ""
        setting = name if self.secret else f"{name}={value!r}"
        return wrong and f"{setting}: {wrong} ({self.about.rstrip('.')})."


SETTINGS: dict[str, Setting] = {
    "BORG_HOME": Setting(".borg", "Folder with all data of this host.", checks.folder),
    "BORG_DATABASE_URL": Setting(
        "postgresql:///borg", "PostgreSQL, as a libpq URI of one host or of several.", checks.database, secret=True
    ),
    "BORG_DATABASE_POOL": Setting(
        "0", "Connections that a web process shares among its requests; 0: one per thread.", checks.number(0, 1_000)
    ),
    "BORG_REQUEST_DEADLINE_S": Setting(
        "50", "Seconds after which a web process answers 503 to a request.", checks.number(5, 600)
    ),
    "BORG_REDIS_URL": Setting(
        "redis://127.0.0.1:6379/0",
        "Redis, as a URL, as unix:///path/to/socket, or as redis+sentinel://host,host/NAME.",
        checks.redis,
        secret=True,
    ),
    "BORG_SECRET_KEY": Setting(
        "", "Key that signs sessions and cookies; at least 50 random characters.", checks.secret_key, secret=True
    ),
    "BORG_DEBUG": Setting("0", "1: error pages show code to everybody; for development only.", checks.flag),
    "BORG_SRE_SECOND_FACTOR": Setting(
        "1", "1: an SRE must use a second factor in the portal and the console; 0: may.", checks.flag
    ),
    "BORG_OIDC_URL": Setting(
        "",
        "Address of an identity provider (OpenID Connect), through which people sign in; empty: none.",
        checks.url("https", "http"),
    ),
    "BORG_OIDC_NAME": Setting("company account", "Name of the provider on the page to sign in.", checks.anything),
    "BORG_OIDC_CLIENT": Setting("borg-portal", "The portal's client id at the provider.", checks.anything),
    "BORG_OIDC_SECRET": Setting("", "The portal's client secret at the provider.", checks.anything, secret=True),
    "BORG_OIDC_GROUPS": Setting("groups", "Claim in which the provider lists a person's groups.", checks.anything),
    "BORG_OIDC_ROLES": Setting(
        "", "Rights of the provider's groups, such as search=operator@ubar,borg=sre, with commas.", checks.oidc_roles
    ),
    "BORG_TOKEN_DAYS": Setting(
        "0", "Largest number of days for which a new token may be valid; 0: no limit.", checks.number(0, 36_500)
    ),
    "BORG_ALLOWED_HOSTS": Setting(
        "127.0.0.1,localhost,[::1]",
        "Host names that the portal answers to, separated by commas.",
        checks.parts(checks.pattern_of_hosts),
    ),
    "BORG_PORTAL_URL": Setting(
        "http://127.0.0.1:8000", "URL of the portal for people and clients.", checks.url("https", "http", bare=True)
    ),
    "BORG_WEB_HOST": Setting("127.0.0.1", "Address that a web process listens on.", checks.address),
    "BORG_WEB_PORT": Setting("8000", "Port that a web process listens on.", checks.port),
    "BORG_WEB_CERTIFICATE": Setting(
        "", "File with the certificate of a web process that speaks TLS itself; empty: HTTP.", checks.file
    ),
    "BORG_WEB_KEY": Setting(
        "", "File with the key of BORG_WEB_CERTIFICATE; empty: the key is in the same file.", checks.file
    ),
    "BORG_HSTS_SECONDS": Setting(
        "31536000",
        "Seconds for which browsers use only TLS to reach an https BORG_PORTAL_URL (HSTS); 0: HSTS is off.",
        checks.number(0, 2**31 - 1),
    ),
    "BORG_ZONE": Setting(
        "borg.internal", "DNS zone above all cells; the zone of a cell is <cell>.<zone>.", checks.zone
    ),
    "BORG_DNS_HOST": Setting("127.0.0.1", "Address that the resolver listens on.", checks.address),
    "BORG_DNS_PORT": Setting("5353", "Port that the resolver listens on, UDP and TCP.", checks.port),
    "BORG_DNS_RESOLVERS": Setting(
        "", "All resolvers, as address or address@port; empty: the one at BORG_DNS_HOST.", checks.parts(checks.server)
    ),
    "BORG_DNS_TTL": Setting(
        "5", "Seconds for which clients may cache a name whose job sets no TTL.", checks.number(0, 86_400)
    ),
    "BORG_DNS_NEGATIVE_TTL": Setting(
        "5", "Seconds for which clients may cache that a name does not exist.", checks.number(0, 86_400)
    ),
    "BORG_DNS_REVERSE": Setting(
        "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,198.18.0.0/15,127.0.0.0/8,fc00::/7,::1/128",
        "Networks whose reverse names (PTR) the resolver answers, separated by commas; none: no network.",
        checks.reverse_networks,
    ),
    "BORG_DNS_CAA": Setting(
        "", 'CAA records of the zones, such as 0 issue "ca.example", separated by semicolons.', checks.caa
    ),
    "BORG_DNS_TRANSFER": Setting(
        "", "Networks that may transfer zones, separated by commas; empty: none.", checks.parts(checks.network)
    ),
    "BORG_DNS_KEYS": Setting(
        "", "TSIG keys that allow zone transfers: name:hmac-sha256:base64, with commas.", checks.keys, secret=True
    ),
    "BORG_DNS_NSID": Setting(
        "", "Name that a resolver returns to clients that ask for it (NSID); empty: no name.", checks.nsid
    ),
    "BORG_DNS_RATE": Setting(
        "0",
        "UDP answers per second to one public network without a DNS cookie; 0: no limit.",
        checks.number(0, 10_000_000),
    ),
    "BORG_DNS_SECONDARIES": Setting(
        "", "Name servers that resolvers notify of changes, as address or address@port.", checks.parts(checks.server)
    ),
    "BORG_DNS_PROCESSES": Setting(
        "1", "Number of processes of a resolver that share its port; use one per core.", checks.number(1, 256)
    ),
    "BORG_DNS_METRICS_HOST": Setting("127.0.0.1", "Address where a resolver serves its metrics.", checks.address),
    "BORG_DNS_METRICS_PORT": Setting(
        "0", "Port where a resolver serves its metrics, as /metrics over HTTP; 0: none.", checks.number(0, 65_535)
    ),
    "BORG_DNS_SNAPSHOT": Setting(
        "", "Folder where a resolver stores names for a start; empty: names/ in BORG_HOME; off: none.", checks.folder
    ),
    "BORG_DNS_STALE": Setting(
        "30", "Seconds without PostgreSQL after which a resolver reports stale answers.", checks.number(1, 86_400)
    ),
    "BORG_LINK_HOST": Setting("127.0.0.1", "Address that a link shard listens on.", checks.host),
    "BORG_LINK_PORT": Setting("8443", "Port that a link shard listens on.", checks.port),
    "BORG_LINK_SHARED_PORT": Setting("0", "1: several link shards on one host share BORG_LINK_PORT.", checks.flag),
    "BORG_LINK_URL": Setting("https://127.0.0.1:8443", "URL of all link shards for Borglets.", checks.url("https")),
    "BORG_AUTHORITY": Setting("", "Folder of the TLS authority; empty: authority/ in BORG_HOME.", checks.folder),
    "BORG_PACKAGE_STORE": Setting(
        "", "Store of packages: file:///folder or s3://bucket/prefix; empty: packages/ in BORG_HOME.", checks.file_store
    ),
    "BORG_ARCHIVE": Setting(
        "",
        "Store of the archive: file:///folder or s3://bucket/prefix; empty: archive/ in BORG_HOME.",
        checks.file_store,
    ),
    "BORG_ARCHIVE_KEYS": Setting(
        "",
        "Keys of the archive and checkpoints, each 32 bytes in base64, separated by commas. The first one encrypts, all"
        " decrypt; empty: no encryption.",
        checks.archive_keys,
        secret=True,
    ),
    "BORG_SECRET_KEYS": Setting(
        "",
        "Keys of the secrets of tenants, each 32 bytes in base64, separated by commas. The first one encrypts, all"
        " decrypt; empty: the installation stores no secrets.",
        checks.archive_keys,
        secret=True,
    ),
    "BORG_LINK_CERTIFICATE": Setting(
        "", "File with a link certificate of another authority; empty: the portal issues it.", checks.file
    ),
    "BORG_LINK_KEY": Setting(
        "", "File with the key of BORG_LINK_CERTIFICATE; empty: the key is in the same file.", checks.file
    ),
    "BORG_SMTP_HOST": Setting("", "Mail server; empty: the worker prints mail into its log.", checks.host),
    "BORG_SMTP_PORT": Setting("587", "Port of the mail server.", checks.port),
    "BORG_SMTP_TLS": Setting(
        "starttls",
        "Encryption of the connection to the mail server: starttls, tls (port 465) or none.",
        checks.one_of("starttls", "tls", "none"),
    ),
    "BORG_SMTP_USER": Setting("", "User at the mail server; empty: the portal does not sign in.", checks.anything),
    "BORG_SMTP_PASSWORD": Setting("", "Password for the mail server.", checks.anything, secret=True),
    "BORG_MAIL_FROM": Setting("Borg Portal <borg-portal@localhost>", "Sender of the portal's mail.", checks.mailbox),
    "BORG_WEBHOOK_NETWORKS": Setting(
        "", "Private networks that webhooks may reach, with commas; empty: none.", checks.parts(checks.network)
    ),
    "BORG_USAGE_KEEP_HOURS": Setting(
        "24", "Hours for which PostgreSQL keeps five-minute windows of usage, at least 3.", checks.number(3, 87_600)
    ),
    "BORG_MAX_BODY_BYTES": Setting(
        "33554432", "Largest size of a request body, in bytes.", checks.number(1_024, 2**31)
    ),
    "BORG_SQL_SECONDS": Setting("30", "Seconds that an SQL query over the history may take.", checks.number(1, 600)),
    "BORG_SQL_MEMORY_MIB": Setting(
        "1024", "Memory in MiB that an SQL query over the history may use.", checks.number(64, 1_000_000)
    ),
    "BORG_MAX_TASKS_PER_JOB": Setting("100000", "Largest number of tasks of one job.", checks.number(1, 2**20)),
    "BORG_MAX_BULK_JOBS": Setting("10000", "Largest number of jobs in one bulk submission.", checks.number(1, 10**6)),
    "BORG_MAX_CRON_JOBS_PER_TENANT": Setting(
        "1000", "Largest number of cron jobs of one tenant in a cell.", checks.number(0, 10**6)
    ),
    "BORG_MAX_CRON_JOBS_PER_CELL": Setting("20000", "Largest number of cron jobs in a cell.", checks.number(0, 10**6)),
    "BORG_MAX_TEMPLATES_PER_TENANT": Setting(
        "1000", "Largest number of templates of one tenant in a cell.", checks.number(0, 10**6)
    ),
    "BORG_CRON_MIN_PERIOD_S": Setting(
        "60", "Shortest time between two runs of a cron job, in seconds.", checks.number(60, 86_400)
    ),
    "BORG_MAX_WORKFLOWS_PER_TENANT": Setting(
        "200", "Largest number of live workflows of one tenant in a cell.", checks.number(0, 10**4)
    ),
    "BORG_MAX_WORKFLOWS_PER_CELL": Setting(
        "1000", "Largest number of live workflows in a cell.", checks.number(0, 10**5)
    ),
    "BORG_MAX_WATCHES": Setting(
        "5000",
        "Largest number of live pages, WebSockets and long polls of names per web process.",
        checks.number(1, 10**6),
    ),
    "BORG_MAX_WATCHES_PER_CALLER": Setting(
        "1000", "The limit of BORG_MAX_WATCHES per user, service account or task.", checks.number(1, 10**6)
    ),
    "BORG_RATE_PER_TOKEN": Setting(
        "300", "Requests per second with one token or session; 0: no limit.", checks.number(0, 10**6)
    ),
    "BORG_RATE_PER_TENANT": Setting(
        "600", "Requests per second with all tokens of one tenant; 0: no limit.", checks.number(0, 10**6)
    ),
    "BORG_RATE_PER_ADDRESS": Setting(
        "1000", "Requests per second from one address; 0: no limit.", checks.number(0, 10**6)
    ),
    "PROMETHEUS_MULTIPROC_DIR": Setting(
        "", "Folder where the processes of a host share metrics; empty: none.", checks.folder_there
    ),
    "BORG_LOG_LEVEL": Setting(
        "INFO",
        "Lowest level of log lines: DEBUG, INFO, WARNING or ERROR.",
        checks.one_of("DEBUG", "INFO", "WARNING", "ERROR"),
    ),
    "BORG_CELLS": Setting("", "Cells that this process serves, with commas; empty: all.", checks.parts(checks.label)),
}


_METRICS = "PROMETHEUS_MULTIPROC_DIR"


def complaints(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield one line for each setting that is not valid."""
    for name, setting in SETTINGS.items():
        if line := setting.complaint(name, environ.get(name, "")):
            yield line
    if environ.get("BORG_OIDC_URL") and not environ.get("BORG_OIDC_ROLES", "").strip(" ,"):
        yield (
            "BORG_OIDC_ROLES is empty, so nobody can sign in through BORG_OIDC_URL: give the rights of the provider's"
            " groups, such as borg-sres=sre, or leave BORG_OIDC_URL empty."
        )


def check(environ: Mapping[str, str] = os.environ) -> None:
    """If a setting is not valid, print one line per such setting and end the process."""
    # The library of Prometheus writes files into the current folder if this variable is set but empty.
    if os.environ.get(_METRICS) == "":
        del os.environ[_METRICS]
    if lines := list(complaints(environ)):
        exit_with(*lines)


def exit_with(*lines: str) -> NoReturn:
    """Print the lines as errors. Then end the process with the exit status that means an invalid setting."""
    print(*lines, sep="\n", file=sys.stderr)
    raise SystemExit(2)


def text(name: str) -> str:
    """Return the value of a setting, or its default if the value is empty."""
    return os.environ.get(name) or SETTINGS[name].default


def number(name: str) -> int:
    """Return the value of a setting as a whole number."""
    return int(text(name))


def networks(name: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks in a setting that is a comma-separated list."""
    return tuple(ip_network(part) for part in names(name))


def folder(name: str, below: str) -> Path | None:
    """Return the folder that a setting names. If the setting is empty, return the folder `below` inside BORG_HOME. If
    the setting is `off`, return None.
    """
    value = text(name)
    if value == "off":
        return None
    return Path(value).resolve() if value else home() / below


def flag(name: str) -> bool:
    """Return whether a setting is switched on, with the value `1`, `true`, `yes` or `on`."""
    return text(name).lower() in ("1", "true", "yes", "on")


def names(name: str) -> list[str]:
    """Return the parts of a setting that is a comma-separated list."""
    return [part.strip() for part in text(name).split(",") if part.strip()]


def home() -> Path:
    """Return the path of the folder in the setting BORG_HOME."""
    return Path(text("BORG_HOME")).resolve()
