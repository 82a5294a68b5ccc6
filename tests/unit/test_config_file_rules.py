"""Tests of the rules for config files: contents, lines that look like secrets, differences, and uses in job files."""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.config_files import file_rules, spec_uses
from scheduling.jobs.rollouts.restart_rule import SpecChange, change
from scheduling.spec import parser
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.task_spec import DELIVERS_CONFIGS, DELIVERS_SECRETS


def read(*uses: dict[str, object], overrides: dict[str, object] | None = None) -> JobSpecification:
    file = {"name": "web", "tasks": 4, "task": {"command": ["serve"], "configs": list(uses)}}
    return parser.parse(file | ({"overrides": overrides} if overrides else {}))


@pytest.mark.parametrize(
    ("use", "field", "text"),
    [
        ({"name": "F"}, "name", "label"),
        ({"name": "f", "file": "/etc/passwd"}, "file", "no '/'"),
        ({"name": "f", "file": "../up"}, "file", "no '/'"),
        ({"name": "f", "file": ".."}, "file", "no '.' at the beginning"),
        ({"name": "f", "version": 0}, "version", "give a number or latest"),
        ({"name": "f", "version": "newest"}, "version", "give a number or latest"),
        ({"name": "f", "version": True}, "version", "give a whole number"),
        ({"name": "f", "on_change": "reload"}, "on_change", "signal"),
        ({"name": "f", "version": 2, "on_change": "restart"}, "on_change", "version 2 of a file never changes"),
    ],
)
def test_a_wrong_use_is_rejected_with_its_field(use, field, text) -> None:
    with pytest.raises(Rejected) as caught:
        read(use)
    assert text in caught.value.fields[f"task.configs[0].{field}"]


def test_two_files_with_one_name_are_rejected() -> None:
    with pytest.raises(Rejected, match="two config files use the file 'a'"):
        read({"name": "a"}, {"name": "b", "file": "a"})


def test_an_alloc_set_and_too_many_files_are_rejected() -> None:
    with pytest.raises(Rejected, match="use config files in the jobs inside the alloc set"):
        parser.parse({"kind": "AllocSet", "name": "web", "task": {"configs": [{"name": "a"}]}})
    with pytest.raises(Rejected) as caught:
        read(*({"name": f"f{number}"} for number in range(17)))
    assert "16" in caught.value.fields["task.configs"]


def test_uses_survive_the_stored_form_and_old_specs_keep_their_digest() -> None:
    spec = read({"name": "a", "on_change": "signal"}, {"name": "b", "version": 3})
    assert parser.load(spec.to_json()) == spec
    assert "configs" not in read().to_json()["task"]
    assert spec_uses.names_of(spec) == ["a", "b"]
    assert spec_uses.versions_of([spec, read({"name": "b"})]) == {"a": ["latest"], "b": ["3", "latest"]}


def test_only_machines_that_deliver_config_files_get_such_a_task() -> None:
    assert DELIVERS_CONFIGS in read({"name": "a"}).base.demands()
    assert DELIVERS_CONFIGS not in read().base.demands()
    assert DELIVERS_SECRETS not in read({"name": "a"}).base.demands()


def test_another_use_of_files_restarts_a_task() -> None:
    assert change(read(), read({"name": "a"}), 0) is SpecChange.RESTART
    assert change(read({"name": "a"}), read({"name": "a", "on_change": "signal"}), 0) is SpecChange.RESTART


def test_only_tasks_that_ask_for_it_are_restarted() -> None:
    asks = {"name": "a", "on_change": "restart"}
    spec = read({"name": "a"}, overrides={"1-2": {"configs": [asks]}})
    assert spec_uses.restarted_by(spec, "a") == [(1, 2)]
    assert spec_uses.restarted_by(spec, "b") == []
    assert [path for path, _ in spec_uses.uses_of(spec)] == ["task.configs[0]", "overrides.1-2.configs[0]"]


@pytest.mark.parametrize(
    "line",
    [
        "password: hunter2",
        'DB_PASSWORD="hunter2"',
        "export API_TOKEN=abc",
        '  "apiKey": "abc",',
        "url: postgres://ann:hunter2@db/shop",
        "see postgres://ann:hunter2@db/shop",
        "-----BEGIN RSA PRIVATE KEY-----",
        "db: {user: ann, password: hunter2}",
        '{"db":{"password":"hunter2"}}',
        "<password>hunter2</password>",
    ],
)
def test_a_line_that_looks_like_a_secret_is_found(line) -> None:
    assert [number for number, _ in file_rules.secret_lines(f"# settings\n{line}\n")] == [2]


@pytest.mark.parametrize("line", ["color: red", "password:", 'password: ""', "keys: [", "monkey: 3", "retries = 3"])
def test_an_ordinary_line_is_not_a_secret(line) -> None:
    assert list(file_rules.secret_lines(line)) == []


def test_a_difference_shows_changed_lines_and_a_missing_line_break() -> None:
    lines = file_rules.diff("a\nb\n", "a\nc", name="f", before=1, after=2)
    assert lines[:3] == ["--- f version 1", "+++ f version 2", "@@ -1,2 +1,2 @@"]
    assert lines[3:] == [" a", "-b", "+c\n\\ No newline at end of file"]
    assert file_rules.diff("a\n", "a\n", name="f", before=1, after=2) == []


def test_a_difference_of_many_lines_is_not_compared_line_by_line() -> None:
    most = file_rules.MOST_COMPARED
    old = "".join(f"{number % 7}\n" for number in range(2 * most))
    new = "first\n" + "".join(f"{number % 5} \n" for number in range(2 * most))
    lines = file_rules.diff(old + "end\n", new + "end\n", name="f", before=1, after=2)
    assert lines[2] == f"@@ -1,{2 * most + 1} +1,{2 * most + 2} @@"
    assert (lines[3], lines[-1]) == ("-0", "+end")


def test_equal_lines_around_a_change_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = difflib.unified_diff

    def spy(ours: list[str], theirs: list[str], *rest: Any, **named: Any) -> Any:
        compared.append(max(len(ours), len(theirs)))
        return real(ours, theirs, *rest, **named)

    monkeypatch.setattr(difflib, "unified_diff", spy)
    old = [str(number % 100) for number in range(50_000)]
    new = [*old[:25_000], "new", *old[25_001:]]
    lines = file_rules.diff("\n".join(old) + "\n", "\n".join(new) + "\n", name="f", before=1, after=2)
    assert lines[2:] == ["@@ -24998,7 +24998,7 @@", " 97", " 98", " 99", "-0", "+new", " 1", " 2", " 3"]
    assert compared == [7]


def test_the_restarted_ranges_are_of_the_present_spec() -> None:
    spec = read({"name": "a", "on_change": "restart"}, {"name": "a", "file": "b", "version": 1})
    assert spec_uses.restarted_by(spec, "a") == [(0, 3)]
