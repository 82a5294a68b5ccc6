"""Tests of templates: parameters, arguments, and the job files that they make."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from quota.vocabulary.errors import Rejected
from scheduling.job_templates import template_spec
from scheduling.job_templates.parameters import arguments, filled, uses
from scheduling.spec.field_errors import Problems
from scheduling.spec.parser import CellLimits, parse

LIMITS = CellLimits()
PARAMETERS = {
    "size": {"type": "integer", "minimum": 1, "maximum": 10, "default": 2},
    "picture": {"type": "string", "maxLength": 20},
    "ratio": {"type": "number", "default": 0.5},
    "fast": {"type": "boolean", "default": False},
    "band": {"type": "string", "enum": ["best-effort", "batch"], "default": "best-effort"},
}
COMMAND = ["convert", "--ratio=$(param.ratio)", "$(param.picture)", "--fast=$(param.fast)", "$(index)"]


def a_file(**changes: Any) -> dict[str, Any]:
    job = {"tasks": "$(param.size)", "priority": "$(param.band)", "task": {"command": COMMAND}}
    return {"kind": "Template", "name": "resize", "parameters": {"properties": PARAMETERS}, "job": job} | changes


def dispatched(suffix: str = "7", *, file: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    read = template_spec.parse(file or a_file(), limits=LIMITS)
    return template_spec.dispatched(read.name, read.stored, given, suffix)


def test_a_dispatch_makes_a_job_file_with_typed_values() -> None:
    file = dispatched(picture="a.png", size="3", fast=True)
    assert (file["name"], file["labels"], file["tasks"]) == ("resize-7", {"template": "resize"}, 3)
    job = parse(file)
    assert job.task(0).command == ("convert", "--ratio=0.5", "a.png", "--fast=true", "$(index)")
    assert dispatched("monday", picture="a.png")["name"] == "resize-monday"


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({}, "parameters.picture", "is missing; give a text of 0 to 20 characters"),
        ({"picture": "x" * 21}, "parameters.picture", "is not allowed; give a text of 0 to 20 characters"),
        ({"picture": 3}, "parameters.picture", "'3' is not of type string"),
        ({"picture": "a$"}, "parameters.picture", "a $ at its end"),
        ({"picture": "$(port.http)"}, "parameters.picture", "which no argument can have"),
        ({"picture": "a", "size": 11}, "parameters.size", "give a whole number and at least 1 and at most 10"),
        ({"picture": "a", "size": "two"}, "parameters.size", "'two' is not of type integer"),
        ({"picture": "a", "size": 2.5}, "parameters.size", "'2.5' is not of type integer"),
        ({"picture": "a", "size": True}, "parameters.size", "is not of type integer"),
        ({"picture": "a", "ratio": "nan"}, "parameters.ratio", "is not allowed; give a number"),
        ({"picture": "a", "fast": 1}, "parameters.fast", "give true or false"),
        ({"picture": "a", "band": "prod"}, "parameters.band", "give one of best-effort, batch"),
        ({"picture": "a", "colour": "red"}, "parameters.colour", "there is no such parameter; the parameters are size"),
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
        dispatched(suffix, picture="a")
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
        (
            {"job": {"tsk": {}, "task": {"command": COMMAND}, "tasks": "$(param.size)", "priority": "$(param.band)"}},
            "job.tsk",
            "unknown",
        ),
        ({"job": {"task": {"command": ["a\x00"]}}, "parameters": {}}, "job", "NUL"),
        ({"job": {"task": {"command": ["x"], "env": {"$(param.size)": "1"}}}}, "job", "only values can have"),
        (
            {"parameters": {"properties": PARAMETERS | {"size": {"type": "integer", "enum": ["1"]}}}},
            "parameters.properties.size.enum[0]",
            "is not of type integer",
        ),
        (
            {"parameters": {"properties": PARAMETERS | {"size": {"type": "integer", "minimum": 3, "maximum": 2}}}},
            "parameters.properties.size",
            "no value is possible",
        ),
        (
            {"parameters": {"properties": PARAMETERS | {"size": {"type": "integer", "minLength": 3}}}},
            "parameters.properties.size.minLength",
            "has no minLength; remove it",
        ),
        ({"name": "x" * 43}, "name", "give at most 42, because jobs add a suffix"),
    ],
)
def test_a_wrong_template_is_rejected_with_the_field(changes: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(Rejected) as refused:
        template_spec.parse(a_file(**changes), limits=LIMITS)
    assert any(path.startswith(field) and message in f"{path} {text}" for path, text in refused.value.fields.items())


def test_an_escaped_dollar_does_not_begin_a_parameter() -> None:
    job = {"tasks": "$(param.y)", "command": ["$$(param.x)", "pid $$ $(param.y)", "$(param.y)$(param.y)"]}
    assert uses(job) == {"y"}
    assert filled(job, {"y": 5}) == {"tasks": 5, "command": ["$$(param.x)", "pid $$ 5", "55"]}


def test_numbers_become_text_where_a_job_file_has_only_text() -> None:
    properties = {"n": {"type": "integer"}, "b": {"type": "boolean"}}
    task = {"command": ["x", "$(param.n)", "$(param.b)"], "env": {"N": "$(param.n)", "B": "$(param.b)"}}
    job = {"task": task, "labels": {"n": "$(param.n)"}, "overrides": {"0": {"env": {"N": "$(param.n)0"}}}}
    file = dispatched(file=a_file(parameters={"properties": properties}, job=job), n=3, b="true")
    assert file["task"] == {"command": ["x", "3", "true"], "env": {"N": "3", "B": "true"}}
    assert (file["labels"], file["overrides"]) == ({"n": "3", "template": "resize"}, {"0": {"env": {"N": "30"}}})
    parse(file)


def test_the_schema_of_a_template_is_a_json_schema_with_the_same_verdicts() -> None:
    schema = template_spec.parse(a_file(), limits=LIMITS).stored["parameters"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["required"] == ["picture"]
    validator = jsonschema.Draft202012Validator(schema)
    for given in ({}, {"picture": "a"}, {"picture": "a", "size": 11}, {"picture": "a", "band": "x"}, {"x": 1}):
        problems = Problems()
        arguments(template_spec.parse(a_file(), limits=LIMITS).parameters, given, problems)
        assert validator.is_valid(given) is not bool(problems.found), given


def test_arguments_cannot_make_a_job_too_large() -> None:
    text = {"type": "string", "maxLength": 4000}
    job = {"task": {"command": ["x", "$(param.a)" * 200]}}
    with pytest.raises(Rejected) as refused:
        dispatched(file=a_file(parameters={"properties": {"a": text}}, job=job), a="x" * 4000)
    assert list(refused.value.fields) == ["parameters"]
    with pytest.raises(Rejected) as refused:
        dispatched(picture="a", **{f"x{number}": 1 for number in range(100)})
    assert list(refused.value.fields) == ["parameters"]


def test_equal_templates_have_equal_digests() -> None:
    one, other = (template_spec.parse(a_file(**change), limits=LIMITS) for change in ({}, {"tenant": "ubar"}))
    assert one.digest() == other.digest()
    assert template_spec.parse(a_file(description="x"), limits=LIMITS).digest() != one.digest()
