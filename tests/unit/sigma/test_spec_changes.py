"""Tests of the differences between two job files."""

from __future__ import annotations

from portal.sigma.jobs.specs.spec_changes import LONGEST, MOST_COMPARED, MOST_FIELDS, FieldChange, spec_diff

OLD = {"name": "web", "tasks": 3, "task": {"command": ["sleep", "9"], "limit": {"cpu": "1"}, "env": {"A": "1"}}}


def test_changed_fields_have_their_path_and_both_values() -> None:
    new = {**OLD, "tasks": 4, "task": {"command": ["sleep", "8"], "limit": {"cpu": "1", "ram": "1Gi"}}, "labels": {}}
    assert spec_diff(OLD, new).fields == (
        FieldChange("tasks", "3", "4"),
        FieldChange("task.command", "[sleep, '9']", "[sleep, '8']"),
        FieldChange("task.limit.ram", "", "1Gi"),
        FieldChange("task.env", "{A: '1'}", ""),
        FieldChange("labels", "", "{}"),
    )


def test_changed_lines_are_those_of_the_job_file() -> None:
    kinds = {kind for kind, _line in spec_diff(OLD, {**OLD, "tasks": 4}).lines}
    assert kinds == {"place", "same", "removed", "added"}
    assert ("added", "+tasks: 4") in spec_diff(OLD, {**OLD, "tasks": 4}).lines


def test_equal_files_have_no_differences() -> None:
    assert not spec_diff(OLD, dict(OLD))
    assert spec_diff(OLD, dict(OLD)).lines == ()


def test_many_and_long_changes_are_cut() -> None:
    many = {f"k{number}": number for number in range(MOST_FIELDS + 5)}
    diff = spec_diff({}, {**many, "a": "x" * 1000})
    assert (len(diff.fields), diff.more) == (MOST_FIELDS, 6)
    assert len(spec_diff({}, {"a": "x" * 1000}).fields[0].after) == LONGEST + 2
    large = spec_diff({}, {"a": "x" * MOST_COMPARED})
    assert (len(large.fields), large.lines) == (1, ())
