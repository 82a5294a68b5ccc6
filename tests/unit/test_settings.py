"""Tests of settings: an invalid one ends every process with one line that names it, its value and the cure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from portal.settings.environment import SETTINGS, check, complaints

ROOT = Path(__file__).parents[2]
KEY = "k" * 60
DOORS = (
    ("manage.py", "check"),
    ("-m", "naming.server"),
    ("-m", "scheduling.link"),
    ("-m", "celery", "-A", "portal.celery", "worker"),
    ("-m", "uvicorn", "portal.asgi:application"),
)


def complaints_of(**given: str) -> list[str]:
    return list(complaints(given))


@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("BORG_HOME", __file__, "a folder"),
        ("BORG_DATABASE_POOL", "eight", "from 0 to 1000"),
        ("BORG_DEBUG", "perhaps", "give 1 or 0"),
        ("BORG_ALLOWED_HOSTS", "127.0.0.1,https://borg.example", "without a port or https://"),
        ("BORG_PORTAL_URL", "borg.example", "https://borg.example"),
        ("BORG_PORTAL_URL", "https://borg.example/", "a path follows the host"),
        ("BORG_PORTAL_URL", "https://borg.example:99999", "https://borg.example"),
        ("BORG_ZONE", "Borg.Internal.", "borg.internal"),
        ("BORG_ZONE", "borg..internal", "borg.internal"),
        ("BORG_DNS_HOST", "localhost", "127.0.0.1"),
        ("BORG_DNS_PORT", "0", "from 1 to 65535"),
        ("BORG_DNS_RESOLVERS", "192.0.2.1,ns.example", "192.0.2.1@5353"),
        ("BORG_DNS_SECONDARIES", "192.0.2.1@0", "192.0.2.1@5353"),
        ("BORG_DNS_TTL", "5s", "from 0 to 86400"),
        ("BORG_DNS_REVERSE", "10.0.0.1/8", "10.1.0.0/16"),
        ("BORG_DNS_REVERSE", "0.0.0.0/0", "give your own"),
        ("BORG_DNS_CAA", "0 isue x", "give one of issue"),
        ("BORG_DNS_TRANSFER", "10.0.0.0/40", "10.1.0.0/16"),
        ("BORG_DNS_NSID", "n" * 65, "at most 64"),
        ("BORG_DNS_PROCESSES", "0", "from 1 to 256"),
        ("BORG_LINK_HOST", "https://link.example", "without a port"),
        ("BORG_LINK_SHARED_PORT", "2", "give 1 or 0"),
        ("BORG_LINK_URL", "http://link.example:8443", "https://"),
        ("BORG_LINK_CERTIFICATE", "/", "path of a file"),
        ("BORG_PACKAGE_STORE", "/srv/packages", "file:///folder"),
        ("BORG_ARCHIVE", "archive", "s3://bucket/prefix"),
        ("BORG_SMTP_HOST", "mail.example:25", "without a port"),
        ("BORG_SMTP_TLS", "ssl", "starttls, tls or none"),
        ("BORG_MAIL_FROM", "the portal", "borg@example.org"),
        ("BORG_WEBHOOK_NETWORKS", "intranet", "10.1.0.0/16"),
        ("BORG_USAGE_KEEP_HOURS", "2", "from 3 to"),
        ("BORG_MAX_TASKS_PER_JOB", "-1", "from 1 to"),
        ("PROMETHEUS_MULTIPROC_DIR", "/nowhere", "create it"),
        ("BORG_LOG_LEVEL", "info", "DEBUG, INFO, WARNING or ERROR"),
        ("BORG_CELLS", "cc, DD", "lower-case"),
    ],
    ids=lambda value: "file" if value == __file__ else value[:24],
)
def test_an_invalid_setting_is_reported_with_its_value_and_the_cure(name: str, value: str, cure: str) -> None:
    (line,) = complaints_of(**{name: value})
    assert line.startswith(f"{name}={value!r}: ")
    assert cure in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BORG_DATABASE_URL", "mysql://borg:hidden@db/borg"),
        ("BORG_REDIS_URL", "http://:hidden@redis"),
        ("BORG_REDIS_URL", "redis:hidden"),
        ("BORG_REDIS_URL", "redis+sentinel://:hid/hidden@redis:26379/borg"),
        ("BORG_DATABASE_URL", "postgresql://borg:hidden@one:5432,two:5433,three:5434,:0/borg"),
        ("BORG_DATABASE_URL", "postgresql://borg:hidden@one:5432,two/borg?port=1,2,3"),
        ("BORG_DATABASE_URL", "postgresql://borg:hidden@one,two/borg?target_session_attrs=any"),
        ("BORG_SECRET_KEY", "hidden"),
        ("BORG_DNS_KEYS", "hidden"),
    ],
)
def test_the_value_of_an_invalid_secret_is_not_printed(name: str, value: str) -> None:
    (line,) = complaints_of(**{name: value})
    assert line.startswith(f"{name}: ")
    assert "hidden" not in line


def test_an_identity_provider_needs_the_rights_of_its_groups() -> None:
    url = {"BORG_OIDC_URL": "https://id.example"}
    for roles in ({}, {"BORG_OIDC_ROLES": " , "}):
        (line,) = complaints_of(**url, **roles)
        assert line.startswith("BORG_OIDC_ROLES is empty")
        assert "such as borg-sres=sre, or leave BORG_OIDC_URL empty" in line
    assert complaints_of(**url, BORG_OIDC_ROLES="borg-sres=sre") == []


def test_an_empty_folder_of_metrics_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty variable, the library of Prometheus would write into the folder in which a service runs."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
    check({})
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ


def test_defaults_and_usual_values_are_valid(tmp_path: Path) -> None:
    assert complaints_of(**{name: setting.default for name, setting in SETTINGS.items()}) == []
    assert [name for name, one in SETTINGS.items() if one.default and one.check(one.default)] == []
    assert (
        complaints_of(
            BORG_HOME=str(tmp_path / "new"),
            BORG_DATABASE_URL="postgresql://borg:p%40ss@db.example:5432/borg?sslmode=require",
            BORG_REDIS_URL="rediss://:p@redis.example:6380/1",
            BORG_ALLOWED_HOSTS=".borg.example, 192.0.2.1,*",
            BORG_PORTAL_URL="https://borg.example:8443",
            BORG_DNS_HOST="::",
            BORG_DNS_REVERSE="none",
            BORG_DNS_RESOLVERS="192.0.2.1@5353, 2001:db8::1",
            BORG_DNS_KEYS="shared:hmac-sha256:c2VjcmV0",
            BORG_DNS_CAA='0 issue "ca.example"; 0 issuewild ";"',
            BORG_DNS_SNAPSHOT="off",
            BORG_LINK_HOST="link.example",
            BORG_PACKAGE_STORE="s3://bucket/prefix?region=x",
            BORG_SMTP_TLS="tls",
            BORG_MAIL_FROM="borg@borg.example",
            BORG_WEBHOOK_NETWORKS="10.1.0.0/16, fd00::/8",
            BORG_LOG_LEVEL="DEBUG",
            BORG_CELLS="cc,dd",
            BORG_DEBUG="True",
        )
        == []
    )
    assert complaints_of(BORG_REDIS_URL="redis:///1") == []  # on this host
    assert complaints_of(BORG_REDIS_URL="redis+sentinel://one,two:26380/borg/1") == []
    assert complaints_of(BORG_DATABASE_URL="postgresql://borg@one:5432,two:5433/borg") == []


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door[-1])
def test_no_process_starts_with_an_invalid_setting(tmp_path: Path, door: tuple[str, ...]) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "BORG_HOME": str(tmp_path / "home"),
        "BORG_SECRET_KEY": KEY,
        "BORG_SMTP_PORT": "smtp",
        "BORG_LOG_LEVEL": "loud",
    }
    done = subprocess.run(
        [sys.executable, *door], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == [
        "BORG_SMTP_PORT='smtp'",
        "BORG_LOG_LEVEL='loud'",
    ]
    assert not (tmp_path / "home").exists()
