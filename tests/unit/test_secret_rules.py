"""Tests of the rules of secrets: encryption, grants, their use in job files, and values in `env` that look secret."""

from __future__ import annotations

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.jobs.rollouts import restart_rule
from scheduling.jobs.rollouts.restart_rule import SpecChange
from scheduling.secrets import grant_rules, spec_rules
from scheduling.secrets.grant_rules import JobGrant
from scheduling.secrets.sealing import CannotOpen, KeyRing, Place, key_id
from scheduling.spec import parser
from scheduling.spec.task_spec import DELIVERS_SECRETS

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
PLACE = Place("ubar", "db", 1)


def a_file(*uses: dict, **task: object) -> dict:
    return {"name": "web", "tasks": 3, "task": {"command": ["serve"], "secrets": list(uses), **task}}


def test_a_value_is_read_only_with_its_key_and_at_its_place() -> None:
    ring = KeyRing([NEW, OLD])
    sealed = ring.seal(b"hunter2", PLACE)
    assert sealed.key_id == key_id(NEW)
    assert b"hunter2" not in sealed.sealed
    assert ring.open_value(sealed.key_id, sealed.sealed, PLACE) == b"hunter2"
    assert KeyRing([OLD, NEW]).open_value(sealed.key_id, sealed.sealed, PLACE) == b"hunter2"
    for other in (Place("eve", "db", 1), Place("ubar", "other", 1), Place("ubar", "db", 2)):
        with pytest.raises(CannotOpen, match="damaged, or belongs to another secret; set the secret again"):
            ring.open_value(sealed.key_id, sealed.sealed, other)
    with pytest.raises(CannotOpen, match=rf"key {key_id(NEW)}, which BORG_SECRET_KEYS does not contain; add the key"):
        KeyRing([OLD]).open_value(sealed.key_id, sealed.sealed, PLACE)
    with pytest.raises(CannotOpen, match="damaged"):
        ring.open_value(sealed.key_id, sealed.sealed[:-1], PLACE)


def test_equal_values_have_equal_fingerprints_only_under_one_key_and_name() -> None:
    ring = KeyRing([NEW])
    prints = {
        ring.seal(b"hunter2", PLACE).fingerprint,
        ring.seal(b"hunter2", Place("ubar", "db", 2)).fingerprint,
        ring.seal(b"hunter2", Place("ubar", "other", 1)).fingerprint,
        KeyRing([OLD]).seal(b"hunter2", PLACE).fingerprint,
    }
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("grant", "job", "cell", "covered"),
    [
        (JobGrant("web"), "web", "cc", True),
        (JobGrant("web"), "web-2", "cc", False),
        (JobGrant("web*"), "web-2", "cc", True),
        (JobGrant("*"), "web", "cc", True),
        (JobGrant("web", "dd"), "web", "cc", False),
        (JobGrant("web", "cc"), "web", "cc", True),
    ],
)
def test_grants_cover_names_and_beginnings_of_names(grant, job, cell, covered) -> None:
    assert grant.covers(job, cell) is covered


@pytest.mark.parametrize("jobs", ["", "Web", "we*b", "**", "x" * 64, "web,db"])
def test_a_grant_that_names_no_jobs_is_rejected(jobs: str) -> None:
    with pytest.raises(Rejected, match=r"jobs: .* names no jobs; give the name of a job"):
        grant_rules.check_jobs(jobs)


@pytest.mark.parametrize(
    ("use", "field", "problem"),
    [
        ({"name": "db"}, "", "give either file or env"),
        ({"name": "db", "file": "a", "env": "A"}, "", "give either file or env"),
        ({"name": "DB", "file": "a"}, ".name", "is not a DNS label"),
        ({"name": "db", "file": "../a"}, ".file", "is not the name of a file"),
        ({"name": "db", "file": ".a"}, ".file", "is not the name of a file"),
        ({"name": "db", "env": "A-B"}, ".env", "is not the name of a variable"),
        ({"name": "db", "env": "BORG_TASK"}, ".env", "is a name of Borg's own variables"),
        ({"name": "db", "env": "PATH"}, ".env", "is a name of Borg's own variables"),
        ({"name": "db", "env": "MODE"}, ".env", "is also in task.env; remove one of the two"),
        ({"name": "db", "file": "a", "version": 0}, ".version", "give a number or latest"),
        ({"name": "db", "file": "a", "version": "new"}, ".version", "give a number or latest"),
        ({"name": "db", "file": "a", "value": "hunter2"}, ".value", "unknown field"),
    ],
)
def test_a_wrong_use_of_a_secret_names_its_field(use, field, problem) -> None:
    with pytest.raises(Rejected) as caught:
        parser.parse(a_file(use, env={"MODE": "fast"}))
    assert problem in caught.value.fields[f"task.secrets[0]{field}"]
    assert "hunter2" not in caught.value.detail


def test_two_secrets_cannot_have_one_place() -> None:
    uses = [
        {"name": "a", "file": "x"},
        {"name": "b", "env": "X"},
        {"name": "b", "file": "x"},
        {"name": "a", "env": "X"},
    ]
    with pytest.raises(Rejected) as caught:
        parser.parse(a_file(*uses))
    assert set(caught.value.fields) == {"task.secrets[2].file", "task.secrets[3].env"}


def test_a_spec_keeps_its_secrets_and_needs_a_machine_that_delivers_them() -> None:
    spec = parser.parse(a_file({"name": "db", "file": "password"}) | {"overrides": {"1": {"secrets": []}}})
    assert parser.load(spec.to_json()) == spec
    assert [path for path, _ in spec_rules.uses_of(spec)] == ["task.secrets[0]"]
    assert DELIVERS_SECRETS in spec.requirement(0).constraints
    assert DELIVERS_SECRETS not in spec.requirement(1).constraints
    without = parser.parse(a_file())
    assert "secrets" not in without.to_json()["task"], "digests of older specs stay as they are"
    assert restart_rule.change(without, spec, 0) is SpecChange.RESTART


def test_values_that_look_secret_are_problems_unless_they_are_declared_or_older() -> None:
    env = {"DB_PASSWORD": "hunter2", "SORT_KEY": "name", "MODE": "fast", "API_TOKEN": ""}
    file = a_file(env=env, plain_env=["SORT_KEY"]) | {"overrides": {"2": {"env": {"DSN": "postgres://u:hunter2@db"}}}}
    spec = parser.parse(file)
    problems = spec_rules.plain_secrets(spec)
    assert set(problems) == {"task.env.DB_PASSWORD", "overrides.2.env.DSN"}
    assert "borgctl secret set" in problems["task.env.DB_PASSWORD"]
    assert "hunter2" not in str(problems)
    before = parser.parse(a_file(env={"DB_PASSWORD": "hunter1"}))
    assert set(spec_rules.plain_secrets(spec, before)) == {"overrides.2.env.DSN"}


@pytest.mark.parametrize(("value", "text"), [(b"a", True), ("é".encode(), True), (b"a\0b", False), (b"\xff", False)])
def test_only_text_can_become_a_variable(value: bytes, text: bool) -> None:
    assert grant_rules.is_text(value) is text
