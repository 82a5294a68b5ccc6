"""Helpers that check whether an HTTP answer is one that the OpenAPI document describes."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any

import jsonschema
from django.http import HttpResponse
from drf_spectacular.generators import SchemaGenerator

seen: Counter[tuple[str, str, int]] = Counter()
"""Method, path and status of the answers that were compared."""


@cache
def document() -> dict[str, Any]:
    made: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return made


def operation(method: str, path: str) -> dict[str, Any]:
    """Return what the OpenAPI document says about a method and a path such as `api/v1/cells/{cell}/`."""
    found: dict[str, Any] = document()["paths"]["/" + path.partition("?")[0]][method]
    return found


def deviation(method: str, path: str, answer: HttpResponse) -> str:
    """Return how an answer differs from the OpenAPI document, or "" if it does not differ."""
    described = operation(method, path)["responses"]
    response = described.get(str(answer.status_code))
    if response is None:
        return f"status {answer.status_code} is not among {', '.join(described)}: {answer.content[:300]!r}"
    seen[method, path, answer.status_code] += 1
    response = _resolved(response)
    for name, header in response.get("headers", {}).items():
        if header.get("required") and name not in answer:
            return f"has no header {name}"
    content = response.get("content", {})
    if not content:
        return f"has a body: {answer.content[:300]!r}" if answer.content else ""
    given = answer.get("Content-Type", "").partition(";")[0]
    if given not in content:
        return f"is of type {given!r}, not {', '.join(content)}"
    if not given.endswith("json"):
        return ""
    problems = _validator(method, path, str(answer.status_code), given).iter_errors(json.loads(answer.content))
    return "; ".join(f"{problem.json_path}: {problem.message[:300]}" for problem in problems)


def _resolved(response: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in response:
        name = response["$ref"].rpartition("/")[2]
        found: dict[str, Any] = document()["components"]["responses"][name]
        return found
    return response


@cache
def _validator(method: str, path: str, status: str, kind: str) -> jsonschema.Draft202012Validator:
    response = _resolved(operation(method, path)["responses"][status])
    schema = {**response["content"][kind]["schema"], "components": document()["components"]}
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
