"""Tests of the REST API with generated requests: no answer is a server error or differs from the OpenAPI document.

Each request is sent in one role, and the next request in the next role. With `HYPOTHESIS_PROFILE=search` (`make soak`),
each request is sent in every role. That run also sends many more requests, boundary values of every field, and new
random values at each run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import count
from typing import Any
from zlib import crc32

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from hypothesis import HealthCheck, Phase, given, settings
from pytest_django.plugin import DjangoDbBlocker
from schemathesis.checks import not_a_server_error
from schemathesis.generation.hypothesis.examples import generate_one
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from quota.admission import published_capacity
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import GENERAL_SCOPES, Role, Scope, system
from tests.examples import SEARCH
from tests.integration import rows
from tests.integration import world as people

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(3600 if SEARCH else 600)]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# `negative_data_rejection` is left out: serializers read 0 as "0" and as false where a text or a boolean is documented.
PARTS = 4  # workers of pytest-xdist share them
THERE = {"cell": "cc", "tenant": "ubar", "job": "web", "hostname": "m1", "host": "m1", "index": "0"}
bounded = settings(
    max_examples=10 if SEARCH else 2,
    deadline=None,
    derandomize=not SEARCH,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def _one_connection() -> Iterator[None]:
    """Keep the database connection of a test open when Django finishes a request inside the test's transaction."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture(scope="module")
def callers(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, dict[str, str]]]:
    """Yield the HTTP headers of each role, by name of the role. All tests of this module use the same users."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield _callers()
        transaction.set_rollback(True)


def _callers() -> dict[str, dict[str, str]]:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    machine = rows.a_machine(cell)
    published_capacity.publish(cell=cell.name, capacity=rows.LARGE, revision=1)
    job = people.submit(people.principal("ann", tenant=tenant), cell, people.a_file(priority=0))
    people.bring_up(job, machine)
    every = list(GENERAL_SCOPES)
    owner = people.a_user("owner", tenant=tenant)
    return {
        "sre": _token(people.a_user("sre", sre=True), every),
        "owner": _token(owner, every),
        "operator": _token(people.a_user("operator", tenant=tenant, role=Role.OPERATOR), every),
        "viewer": _token(people.a_user("viewer", tenant=tenant, role=Role.VIEWER), every),
        "reader": _token(owner, [Scope.READ]),
        "stranger": _token(people.a_user("stranger"), every),
        "anonymous": {},
    }


def _token(user: Any, scopes: list[Scope]) -> dict[str, str]:
    _, secret = token_issue(principal=system("test"), user=user, name="fuzz", scopes=[scope.value for scope in scopes])
    return {"Authorization": f"Bearer {secret}"}


def _name_what_exists(case: schemathesis.Case) -> None:
    """Replace about half of the names in a request by names of existing rows, so that not every answer is 404. Replace
    names of dots too, with which a client would ask another address.
    """
    body = case.body if isinstance(case.body, dict) else {}
    for name, value in (case.path_parameters or {}).items():
        if str(value).strip(".") == "":
            case.path_parameters[name] = "dots"
    for named in (case.path_parameters or {}, case.query or {}, body):
        for name in THERE.keys() & named.keys():
            if len(str(named[name])) % 2:
                named[name] = THERE[name]


@functools.cache
def _document() -> BaseSchema:
    """Return the operations of the OpenAPI document. Only the workers that run these tests read it, because that takes
    seconds.
    """
    document = schemathesis.openapi.from_wsgi("/api/v1/schema/?format=json", get_wsgi_application())
    document.config.phases.coverage.enabled = SEARCH  # boundary values of every field take most of the time
    # Logs, and the list of a cell's name servers, need processes that do not run here.
    return document.exclude(path_regex="/logs/").exclude(operation_id=["bns_cell"])


def _send_all(operation: APIOperation[Any, Any, Any], everyone: list[dict[str, str]]) -> None:
    """Send the documented and drawn requests of an operation. Callers take turns, beginning with the first one."""
    turns = count()

    def send(case: schemathesis.Case) -> None:
        _name_what_exists(case)
        for headers in everyone if SEARCH else [everyone[next(turns) % len(everyone)]]:
            with transaction.atomic():
                # The WSGI transport does not unpack compressed answers.
                case.call_and_validate(headers={**headers, "Accept-Encoding": "identity"}, checks=CHECKS)
                transaction.set_rollback(True)

    for documented in operation.get_strategies_from_examples():
        send(generate_one(documented))
    given(operation.as_strategy())(bounded(lambda case: send(case)))()


@pytest.mark.parametrize("part", range(PARTS))
def test_no_answer_is_a_surprise(part: int, callers: dict[str, dict[str, str]], subtests: pytest.Subtests) -> None:
    tested = 0
    for result in _document().get_all_operations():
        operation = result.ok()
        if crc32(operation.label.encode()) % PARTS == part:
            tested += 1
            with subtests.test(operation.label):
                _send_all(operation, list(callers.values()))
    assert tested > 20


@pytest.mark.parametrize("role", ["sre", "owner", "viewer"])
def test_no_answer_to_a_chain_of_requests_is_a_surprise(role: str, callers: dict[str, dict[str, str]]) -> None:
    """Send chains of requests that use names from earlier answers. The OpenAPI document describes every answer."""

    class Chain(_document().as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            self.atomic = transaction.atomic()
            self.atomic.__enter__()

        def teardown(self) -> None:
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)

        def before_call(self, case: schemathesis.Case) -> None:
            _name_what_exists(case)

        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return {"headers": {**callers[role], "Accept-Encoding": "identity"}}

        def validate_response(self, response: Any, case: schemathesis.Case, **more: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    Chain.run(
        settings=settings(
            max_examples=60 if SEARCH else 5,
            stateful_step_count=10,
            deadline=None,
            derandomize=not SEARCH,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
    )
