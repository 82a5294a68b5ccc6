"""Tests of the differences of job files as text, and of the erasure of values that look like secrets."""

from __future__ import annotations

from scheduling.spec.masking import ERASED, MASK, without_secrets
from scheduling.spec.merge_patch import MOST_CHANGES, format_changes


def test_each_field_that_differs_has_a_line() -> None:
    old = {"tasks": 1, "task": {"limit": {"cpu": "1"}, "command": ["a"]}, "labels": {"a": "b"}}
    new = {"tasks": 2, "task": {"limit": {"cpu": "1", "ram": "1Gi"}, "command": ["a", "b"]}, "labels": {}}
    assert format_changes(old, new) == [
        'labels.a: "b" → removed',
        'task.command: ["a"] → ["a", "b"]',
        'task.limit.ram: not set → "1Gi"',
        "tasks: 1 → 2",
    ]
    assert format_changes(old, old) == []


def test_changes_contain_no_secrets_and_are_bounded() -> None:
    old = {"task": {"env": {"DB_PASSWORD": "hunter2", "COLOR": "red"}}}
    new = {
        "task": {"env": {"DB_PASSWORD": "hunter3", "COLOR": "blue"}},
        "nodes": {"a": {"env": {"API_KEY": "hunter4"}}},
    }
    lines = "\n".join(format_changes(old, new))
    assert "hunter" not in lines
    assert lines.count(MASK) == 3
    assert 'task.env.COLOR: "red" → "blue"' in lines
    many = format_changes({}, {f"field{number}": number for number in range(MOST_CHANGES + 5)})
    assert (len(many), many[-1]) == (MOST_CHANGES + 1, "5 more fields change")
    assert len(format_changes({}, {"x": "y" * 1_000})[0]) < 200


def test_values_that_look_like_secrets_are_erased_once() -> None:
    env = {"DB_PASSWORD": "hunter2", "COLOR": "red", "SORT_KEY": "name", "API_KEY": "$(param.key)", "OLD_KEY": MASK}
    file = {"task": {"env": env, "plain_env": ["SORT_KEY"]}, "overrides": {"0": {"env": {"SORT_KEY": "x", "PAT": "y"}}}}
    erased, count = without_secrets(file)
    assert count == 2
    assert erased["task"]["env"] == env | {"DB_PASSWORD": ERASED}
    assert erased["overrides"]["0"]["env"] == {"SORT_KEY": "x", "PAT": ERASED}
    assert file["task"]["env"]["DB_PASSWORD"] == "hunter2", "the file itself does not change"
    assert without_secrets(erased) == (erased, 0)
    assert without_secrets({"nodes": 1}) == ({"nodes": 1}, 0)
