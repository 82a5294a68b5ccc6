"""The environment of each process: the variables that `deploy/borg.env` explains, filled in for one host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from portal.settings.environment import complaints
from portal.up.options import CELL, OptionError, Options

# Variables that a process inherits from the shell of `make up`; no others, so that a start does not depend on a shell.
_INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "NUMBA_CACHE_DIR", "PYTHONPATH")
# Settings of the operator's that pass through to the server's processes.
_TUNABLE = (
    "BORG_DEBUG",
    "BORG_ALLOWED_HOSTS",
    "BORG_PORTAL_URL",
    "BORG_MAX_BODY_BYTES",
    "BORG_MAX_TASKS_PER_JOB",
    "BORG_MAX_BULK_JOBS",
    "BORG_MAX_WATCHES",
    "BORG_MAX_WATCHES_PER_CALLER",
    "BORG_USAGE_KEEP_HOURS",
    "BORG_LOG_LEVEL",
    "BORG_PACKAGE_STORE",
    "BORG_SMTP_HOST",
    "BORG_SMTP_PORT",
    "BORG_SMTP_TLS",
    "BORG_SMTP_USER",
    "BORG_SMTP_PASSWORD",
    "BORG_MAIL_FROM",
    "BORG_WEBHOOK_NETWORKS",
    *("BORG_DNS_RESOLVERS", "BORG_DNS_TTL", "BORG_DNS_NEGATIVE_TTL", "BORG_DNS_REVERSE", "BORG_DNS_CAA"),
    *("BORG_DNS_TRANSFER", "BORG_DNS_KEYS", "BORG_DNS_SECONDARIES", "BORG_DNS_NSID", "BORG_DNS_RATE"),
    *("BORG_DNS_PROCESSES", "BORG_DNS_METRICS_HOST", "BORG_DNS_METRICS_PORT"),
    *("BORG_DNS_SNAPSHOT", "BORG_DNS_STALE"),
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
)
# What begins like this is a setting of ours, or misspelt.
_FAMILIES = ("BORG_DNS_", "BORG_SMTP_", "BORG_MAX_")
# Options of the Borglet's, such as BORGLET_CAPACITY; where it lives and dials is not theirs to say.
_BORGLET = (
    *("BORGLET_CAPACITY", "BORGLET_RACK", "BORGLET_PLATFORM", "BORGLET_POWER_DOMAIN", "BORGLET_ATTRIBUTES"),
    *("BORGLET_PORT_", "BORGLET_RUNTIME", "BORGLET_TASK_", "BORGLET_DEVICES"),
    *("BORGLET_PACKAGE_BYTES", "BORGLET_PEER_", "BORGLET_LOG_"),
)


def machine_environment(options: Options, inherited: Mapping[str, str]) -> dict[str, str]:
    """For a Borglet: no address of PostgreSQL or Redis, no key. Tasks run below it."""
    kept = {name: inherited[name] for name in _INHERITED if name in inherited}
    tuned = {name: value for name, value in inherited.items() if name.startswith(_BORGLET)}
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        **kept,
        **tuned,
        "PYTHONUNBUFFERED": "1",
        "BORG_HOME": str(options.home),
        "BORG_LOG_LEVEL": inherited.get("BORG_LOG_LEVEL") or "INFO",
    }


def environment(
    options: Options,
    inherited: Mapping[str, str],
    *,
    database_url: str,
    redis_url: str,
    secret_key: str,
) -> dict[str, str]:
    """For every process of the server's."""
    tuned = {name: inherited[name] for name in _TUNABLE if inherited.get(name)}
    return {
        **machine_environment(options, inherited),
        "BORG_PORTAL_URL": options.portal_url,
        **tuned,
        "DJANGO_SETTINGS_MODULE": "portal.settings.production",
        "BORG_DATABASE_URL": database_url,
        "BORG_REDIS_URL": redis_url,
        "BORG_SECRET_KEY": secret_key,
        "BORG_ZONE": options.zone,
        "BORG_DNS_HOST": options.host,
        "BORG_DNS_PORT": str(options.dns_port),
        "BORG_LINK_HOST": options.host,
        "BORG_LINK_PORT": str(options.link_port),
        "BORG_LINK_URL": options.link_url,
        "BORG_AUTHORITY": str(options.home / "authority"),
        "BORG_CELLS": CELL,
        "PROMETHEUS_MULTIPROC_DIR": str(options.home / "run" / "metrics"),
    }


def unheard(options: Options, inherited: Mapping[str, str]) -> Iterator[str]:
    """A line for each setting of a family of ours that is given and does nothing: misspelt, or set by `make up`."""
    ours = environment(options, {}, database_url="", redis_url="", secret_key="")
    for name in sorted(inherited):
        if name in _TUNABLE or not name.startswith(_FAMILIES) or inherited[name] in ("", ours.get(name)):
            continue
        if name in ours:
            yield f"{name}={inherited[name]!r} has no effect: make up sets it to {ours[name]}."
        else:
            near = get_close_matches(name, _TUNABLE, n=1)
            yield f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ".")


def check(options: Options, inherited: Mapping[str, str]) -> None:
    """Raises `OptionError` for settings with which the server's processes could not start."""
    env = environment(options, inherited, database_url="", redis_url="", secret_key="")
    if told := list(complaints({name: env[name] for name in env.keys() & inherited.keys()})):
        raise OptionError("\n".join(told))
