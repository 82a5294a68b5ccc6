"""Tests of the OpenAPI document: it is generated without a warning and describes every method of every route."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator

from scheduling.api.job_file_schema import schema as job_file_schema
from scheduling.spec.parser import parse
from tests.contracts.routes import Route, api_routes

FULL: dict[str, Any] = {
    "name": "web",
    "labels": {"a": "b"},
    "priority": 200,
    "appclass": "batch",
    "tasks": 2,
    "task": {
        "command": ["serve"],
        "env": {"A": "1"},
        "limit": {"cpu": "500m", "ram": 2**27},
        "ports": ["http"],
        "health": {"http": "/"},
        "constraints": [{"attribute": "ssd", "relation": "present"}],
        "max_run_s": 60,
    },
    "overrides": {"1": {"limit": {"cpu": 2}}},
    "spread": {"max_per_rack": 1},
    "update": {"max_down": 1},
    "gang": True,
    "disruption_budget": 1,
    "start_after": "2026-12-24T02:00:00+01:00",
    "after": {"load": "succeeded"},
    "deadline_s": 600,
    "ttl_after_end_s": 200_000,
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    GENERATOR_STATS.reset()
    made = SchemaGenerator().get_schema(request=None, public=True)
    assert not GENERATOR_STATS, [*GENERATOR_STATS._error_cache, *GENERATOR_STATS._warn_cache]
    return made


@pytest.mark.parametrize("route", [route for route in api_routes() if route.name != "schema"], ids=str)
def test_every_method_of_every_route_is_described(document: dict[str, Any], route: Route) -> None:
    paths = {re.sub(r"{.*?}", "{}", path): item for path, item in document["paths"].items()}
    described = paths["/" + re.sub(r"{.*?}", "{}", route.path)]
    assert set(described) == set(route.methods)
    for operation in described.values():
        assert operation["responses"], operation
        assert operation.get("description") or operation.get("summary") or operation["operationId"]


def test_every_operation_documents_its_problems(document: dict[str, Any]) -> None:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            expected = {"401", "403", "404", "406", "409", "422", "429", "503"}
            expected |= {"400", "413", "415"} if method in ("post", "put", "patch") else set()
            assert expected <= set(operation["responses"]), (method, path)
            for status in expected:
                shared = operation["responses"][status]["$ref"].rpartition("/")[2]
                assert list(document["components"]["responses"][shared]["content"]) == ["application/problem+json"]


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(names) == len(set(names))


def test_the_schema_of_job_files_accepts_what_is_accepted() -> None:
    schema = job_file_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(FULL, schema)
    jsonschema.validate(parse(FULL).to_json(), schema)


@pytest.mark.parametrize("change", [{"colour": "blue"}, {"tasks": "2"}, {"task": {"comand": []}}, {"kind": "Pod"}])
def test_and_refuses_what_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**FULL, **change}, job_file_schema())
