"""Tests of masking secrets in environment variables of job files."""

from __future__ import annotations

import copy

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.spec import parser
from scheduling.spec.masking import MASK, looks_secret, masked

NAMES = [
    "PASSWORD",
    "DB_PASSWORD",
    "PGPASSWORD",
    "dbPassword",
    "MYSQL_PWD",
    "FTP_PASS",
    "SSH_PASSPHRASE",
    "SECRET",
    "DJANGO_SECRET_KEY",
    "CLIENT_SECRETS",
    "TOKEN",
    "GITHUB_TOKEN",
    "ACCESS_TOKENS",
    "accessToken",
    "API_KEY",
    "apiKey",
    "APIKEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "SSH_KEYS",
    "CREDENTIALS",
    "GOOGLE_CREDENTIAL",
    "DB_CREDS",
    "PRIVATE_PEM",
    "BASIC_AUTH",
    "SENTRY_DSN",
    "SESSION_COOKIE",
]
PLAIN = [
    "PATH",
    "PWD",
    "OLDPWD",
    "HOME",
    "COLOUR",
    "LANG",
    "KEYBOARD",
    "MONKEY",
    "TOKENIZERS_PARALLELISM",
    "AUTHOR",
    "COMPASS",
    "PASSENGERS",
    "PATTERN",
    "MODE",
    "WORKERS",
    "LOG_LEVEL",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_secrets_are_recognised(name: str) -> None:
    assert looks_secret(name, "x")
    assert looks_secret(name.lower(), "x") or name in ("dbPassword", "accessToken", "apiKey")


@pytest.mark.parametrize("name", PLAIN)
def test_other_names_are_not_secrets(name: str) -> None:
    assert not looks_secret(name, "x")


@pytest.mark.parametrize(
    "value",
    [
        "postgresql://borg:hunter2@db/borg",
        "redis://:hunter2@cache:6379/0",
        "host=db user=borg password=hunter2",
        "Server=db;User=sa;Pwd=hunter2;",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE",
    ],
)
def test_values_with_a_password_in_them_are_secrets_whatever_their_name(value: str) -> None:
    assert looks_secret("DATABASE", value)


@pytest.mark.parametrize(
    "value", ["", "postgresql://db/borg", "https://example.org:8080/a@b", "user@example.org", "a=b", "12:30"]
)
def test_values_without_a_password_are_none(value: str) -> None:
    assert not looks_secret("DATABASE", value)


def test_an_empty_value_is_shown() -> None:
    assert not looks_secret("PASSWORD", "")


FILE = {
    "name": "web",
    "tasks": 3,
    "task": {"command": ["serve"], "env": {"PASSWORD": "hunter2", "MODE": "fast"}},
    "overrides": {"0": {"env": {"TOKEN": "borg_1", "MODE": None}}, "1-2": {"command": ["other"], "env": None}},
}


def test_a_job_file_is_masked_in_its_task_and_its_overrides() -> None:
    before = copy.deepcopy(FILE)
    shown = masked(FILE)
    assert shown["task"] == {"command": ["serve"], "env": {"PASSWORD": MASK, "MODE": "fast"}}
    assert shown["overrides"] == {
        "0": {"env": {"TOKEN": MASK, "MODE": None}},
        "1-2": {"command": ["other"], "env": None},
    }
    assert before == FILE


def test_a_masked_job_file_is_rejected_and_the_variable_is_named() -> None:
    file = {**FILE, "overrides": {"0": {"env": {"TOKEN": "borg_1"}}}}
    assert parser.parse(file).task(0).env["TOKEN"] == "borg_1"
    shown = masked(file)
    for part, field in (("task", "task.env.PASSWORD"), ("overrides", "overrides.0.env.TOKEN")):
        with pytest.raises(Rejected) as problem:
            parser.parse({**file, part: shown[part]})
        assert list(problem.value.fields) == [field]
        assert "hides the stored value" in problem.value.detail


def test_what_was_stored_before_masks_existed_still_loads() -> None:
    stored = parser.parse({**FILE, "overrides": {}}).to_json()
    stored["task"]["env"]["MODE"] = MASK
    assert parser.load(stored).base.env["MODE"] == MASK
