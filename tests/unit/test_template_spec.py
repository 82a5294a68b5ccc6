"""Tests of templates: parameters, arguments, and the job files that they make."""

from __future__ import annotations

from typing import Any

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.job_templates import template_spec
from scheduling.job_templates.parameters import filled, uses
from scheduling.spec.parser import CellLimits, parse

LIMITS = CellLimits()
PARAMETERS = {
    "size": {"type": "integer", "minimum": 1, "maximum": 10, "default": 2},
    "file": {"type": "string", "maxLength": 20},
    "ratio": {"type": "number", "default": 0.5},
    "fast": {"type": "boolean", "default": False},
    "band": {"type": "string", "enum": ["best-effort", "batch"], "default": "best-effort"},
}
COMMAND = ["convert", "--ratio=$(param.ratio)", "$(param.file)", "--fast=$(param.fast)", "$(index)"]


def a_file(**changes: Any) -> dict[str, Any]:
    job = {"tasks": "$(param.size)", "priority": "$(param.band)", "task": {"command": COMMAND}}
    return {"kind": "Template", "name": "resize", "parameters": {"properties": PARAMETERS}, "job": job} | changes


def dispatched(suffix: str = "", **given: Any) -> dict[str, Any]:
    read = template_spec.parse(a_file(), limits=LIMITS)
    return template_spec.dispatched(read.name, read.stored, given, suffix, number=7)


def test_a_dispatch_makes_a_job_file_with_typed_values() -> None:
    file = dispatched(file="a.png", size="3", fast=True)
    assert (file["name"], file["labels"], file["tasks"]) == ("resize-7", {"template": "resize"}, 3)
    job = parse(file)
    assert job.task(0).command == ("convert", "--ratio=0.5", "a.png", "--fast=true", "$(index)")
    assert dispatched("monday", file="a.png")["name"] == "resize-monday"


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({}, "parameters.file", "is missing; give a text of 0 to 20 characters"),
        ({"file": "x" * 21}, "parameters.file", "is not allowed; give a text of 0 to 20 characters"),
        ({"file": 3}, "parameters.file", "'3' is not of type string"),
        ({"file": "$(port.http)"}, "parameters.file", "which an argument cannot contain"),
        ({"file": "a", "size": 11}, "parameters.size", "give a whole number and at least 1 and at most 10"),
        ({"file": "a", "size": "two"}, "parameters.size", "'two' is not of type integer"),
        ({"file": "a", "size": 2.5}, "parameters.size", "'2.5' is not of type integer"),
        ({"file": "a", "size": True}, "parameters.size", "is not of type integer"),
        ({"file": "a", "ratio": "nan"}, "parameters.ratio", "is not allowed; give a number"),
        ({"file": "a", "fast": 1}, "parameters.fast", "give true or false"),
        ({"file": "a", "band": "prod"}, "parameters.band", "give one of best-effort, batch"),
        ({"file": "a", "colour": "red"}, "parameters.colour", "there is no such parameter; the parameters are size"),
    ],
)
def test_a_wrong_argument_is_rejected_by_its_name(given: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(Rejected) as refused:
        dispatched(**given)
    assert list(refused.value.fields) == [field]
    assert message in refused.value.fields[field]


@pytest.mark.parametrize("suffix", ["A", "x" * 21, "a-", "a_b", "-"])
def test_a_suffix_that_no_name_can_have_is_rejected(suffix: str) -> None:
    with pytest.raises(Rejected) as refused:
        dispatched(suffix, file="a")
    assert list(refused.value.fields) == ["suffix"]


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"parameters": {"properties": {}}}, "parameters.properties.size", "the job uses $(param.size); describe"),
        ({"parameters": {"properties": PARAMETERS | {"x": {"type": "string"}}}}, "parameters.properties.x", "not use"),
        ({"parameters": {"properties": {"size": {"type": "array"}}}}, "parameters", "array"),
        ({"parameters": {"properties": {"size": {"type": "string", "pattern": "(a+)+"}}}}, "parameters", "pattern"),
        (
            {"parameters": {"properties": PARAMETERS | {"size": {"type": "integer", "maximum": 1, "default": 2}}}},
            "parameters.properties.size.default",
            "is not allowed; give a whole number and at most 1",
        ),
        ({"parameters": {"properties": PARAMETERS, "required": ["y"]}}, "parameters.required[0]", "remove it"),
        ({"job": {"name": "x", "task": {}}, "parameters": {}}, "job.name", "gets its name from the template"),
        ({"job": {"labels": {"template": "x"}, "task": {}}, "parameters": {}}, "job.labels.template", "remove it"),
        ({"job": {"tasks": 0, "task": {"command": ["x"]}}, "parameters": {}}, "job.tasks", "give 1 to"),
        ({"name": "x" * 43}, "name", "give at most 42, because jobs add a suffix"),
    ],
)
def test_a_wrong_template_is_rejected_with_the_field(changes: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(Rejected) as refused:
        template_spec.parse(a_file(**changes), limits=LIMITS)
    assert any(path.startswith(field) and message in f"{path} {text}" for path, text in refused.value.fields.items())


def test_an_escaped_dollar_is_no_parameter() -> None:
    job = {"command": ["$$(param.x)", "$$$(param.y)", "$(param.y)$(param.y)"]}
    assert uses(job) == {"y"}
    assert filled(job, {"y": 5}) == {"command": ["$$(param.x)", "$$5", "55"]}


def test_equal_templates_have_equal_digests() -> None:
    one, other = (template_spec.parse(a_file(**change), limits=LIMITS) for change in ({}, {"tenant": "ubar"}))
    assert one.digest() == other.digest()
    assert template_spec.parse(a_file(description="x"), limits=LIMITS).digest() != one.digest()
