"""The environment variables of each process: the variables of `deploy/borg.env`, with values for one host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from portal.settings.environment import SETTINGS, complaints
from portal.up.options import OptionError, Options

# The only variables that a process inherits from the shell of `make up`, so that a start does not depend on it.
_INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "NUMBA_CACHE_DIR", "PYTHONPATH")
# A variable with one of these prefixes is a setting of Borg Portal, or its name is misspelt.
_FAMILIES = ("BORG_DNS_", "BORG_SMTP_", "BORG_MAX_", "BORG_OIDC_")
# Settings that the operator can pass to the server processes.
_TUNABLE = (
    *(name for name in SETTINGS if name.startswith(_FAMILIES) and name not in ("BORG_DNS_HOST", "BORG_DNS_PORT")),
    *("BORG_DEBUG", "BORG_ALLOWED_HOSTS", "BORG_PORTAL_URL", "BORG_USAGE_KEEP_HOURS", "BORG_LOG_LEVEL"),
    *("BORG_PACKAGE_STORE", "BORG_ARCHIVE", "BORG_ARCHIVE_KEYS", "BORG_SECRET_KEYS"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    *("BORG_MAIL_FROM", "BORG_WEBHOOK_NETWORKS", "BORG_SRE_SECOND_FACTOR", "BORG_TOKEN_DAYS"),
)
# Options of the Borglet that the operator can pass. Its home and its link address are set by `make up`.
_BORGLET = (
    *("BORGLET_CAPACITY", "BORGLET_RACK", "BORGLET_PLATFORM", "BORGLET_POWER_DOMAIN", "BORGLET_ATTRIBUTES"),
    *("BORGLET_PORT_", "BORGLET_RUNTIME", "BORGLET_TASK_", "BORGLET_DEVICES"),
    *("BORGLET_PACKAGE_BYTES", "BORGLET_PEER_", "BORGLET_LOG_"),
)


def machine_environment(options: Options, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Borglet, without database URL and keys, so that its tasks cannot read them."""
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
    secret_keys: str = "",
) -> dict[str, str]:
    """Return the environment that all server processes share. `secret_keys`: the keys of tenants' secrets, unless the
    operator sets others.
    """
    tuned = {name: inherited[name] for name in _TUNABLE if inherited.get(name)}
    return {
        **machine_environment(options, inherited),
        "BORG_PORTAL_URL": options.portal_url,
        "BORG_SRE_SECOND_FACTOR": "0",  # a portal for trying out, which only this host reaches
        "BORG_SECRET_KEYS": secret_keys,
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
        "BORG_CELLS": ",".join(options.cells),
        "OPENBLAS_NUM_THREADS": "1",  # otherwise the import of NumPy starts a thread per core
        "PROMETHEUS_MULTIPROC_DIR": str(options.home / "run" / "metrics"),
    }


def ignored_settings(options: Options, inherited: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each setting that has no effect: its name is misspelt, or `make up` sets its value."""
    fixed = environment(options, {}, database_url="", redis_url="", secret_key="")
    for name in sorted(inherited):
        if name in _TUNABLE or not name.startswith(_FAMILIES) or inherited[name] in ("", fixed.get(name)):
            continue
        if name in fixed:
            yield f"{name}={inherited[name]!r} has no effect: `make up` sets this setting to {fixed[name]}."
        else:
            near = get_close_matches(name, _TUNABLE, n=1)
            yield f"{name} has no effect: there is no such setting" + (f"; did you mean {near[0]}?" if near else ".")


def check(options: Options, inherited: Mapping[str, str]) -> None:
    """Raise `OptionError` if a setting has a value with which the server processes could not start."""
    env = environment(options, inherited, database_url="", redis_url="", secret_key="")
    if problems := list(complaints({name: env[name] for name in env.keys() & inherited.keys()})):
        raise OptionError("\n".join(problems))
