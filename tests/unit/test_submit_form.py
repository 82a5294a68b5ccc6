"""Tests of the form for a job: it and the job file are two views of the same job."""

from __future__ import annotations

import pytest

from portal.cli import plainyaml
from portal.sigma.submit.form_fields import changed_fields, errors_of, fields_of, with_fields
from quota.vocabulary.bands import DEFAULT_BANDS
from quota.vocabulary.errors import Rejected

FILE = {
    "name": "web",
    "tasks": 2,
    "priority": 200,
    "labels": {"app": "shop"},
    "task": {"command": ["sh", "-c", "echo 'a b'; $(port.http)"], "limit": {"cpu": "100m"}, "ports": ["http", "admin"]},
}


def fields(file):
    return fields_of(file, DEFAULT_BANDS)


def test_the_form_shows_the_values_of_a_job_file() -> None:
    shown = fields(FILE)
    assert {name: shown[name] for name in ("name", "tasks", "band", "cpu", "ram", "ports")} == {
        "name": "web",
        "tasks": "2",
        "band": "production",
        "cpu": "100m",
        "ram": "",
        "ports": "http admin",
    }
    assert with_fields({}, {"command": shown["command"]})["task"]["command"] == FILE["task"]["command"]


def test_a_job_file_without_values_has_the_defaults() -> None:
    shown = fields({})
    assert (shown["tasks"], shown["band"], shown["command"]) == ("1", "free", "")
    assert fields({"priority": "batch"})["band"] == "batch"
    assert fields({"priority": 99_999})["band"] == ""


def test_unchanged_fields_change_nothing() -> None:
    assert changed_fields(fields(FILE), fields(FILE)) == {}


def test_changed_fields_keep_the_rest_of_the_job_file() -> None:
    changed = changed_fields({**fields(FILE), "tasks": "5", "cpu": " 2 ", "ports": "", "band": "free"}, fields(FILE))
    found = with_fields(FILE, changed)
    assert (found["tasks"], found["priority"], found["labels"]) == (5, 0, {"app": "shop"})
    assert found["task"]["limit"] == {"cpu": 2}
    assert "ports" not in found["task"]
    assert FILE["tasks"] == 2


@pytest.mark.parametrize("file", [{"task": "text"}, {"task": {"limit": [1]}}, {"task": None}])
def test_values_of_a_wrong_kind_are_replaced(file) -> None:
    assert fields(file)["cpu"] == ""
    assert with_fields(file, {"cpu": "1"})["task"]["limit"]["cpu"] == 1


def test_a_wrong_command_names_its_place() -> None:
    with pytest.raises(Rejected) as caught:
        with_fields(FILE, {"command": "echo 'a"})
    assert "quotation mark" in errors_of(caught.value.fields)["command"]


def test_errors_of_the_job_file_appear_at_the_fields() -> None:
    found = errors_of({"task.command[2]": "a", "task.limit.cpu": "b", "priority": "c", "labels.x": "d", "cell": "e"})
    assert found == {"command": "a", "cpu": "b", "band": "c", "cell": "e"}


def test_line_breaks_of_a_browser_change_nothing() -> None:
    file = {"name": "web", "task": {"command": ["sh", "-c", "one\ntwo"]}}
    sent = {name: text.replace("\n", "\r\n") for name, text in fields(file).items()}
    assert changed_fields(sent, fields(file)) == {}


@pytest.mark.parametrize("text", ["7e12345", "1e3", "on", "1:00", "0x10", "null", "~", "", "a: b", "- a", "12", "x"])
def test_a_written_file_reads_as_the_same_file(text) -> None:
    value = {"labels": {"commit": text}, "list": [text, 1, 2.5, True, None]}
    assert plainyaml.load(plainyaml.dump(value)) == value
