"""Whatever is sent, the answer is one that the OpenAPI document knows, and never an error of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

from quota.permissions import Scope, system
from quota.services import capacity
from quota.services.access import token_issue
from tests.integration import rows
from tests.integration import world as people

pytestmark = pytest.mark.django_db


document = schemathesis.openapi.from_wsgi("/api/v1/schema/?format=json", get_wsgi_application())


@pytest.fixture(autouse=True)
def _one_connection() -> Iterator[None]:
    """Answers end in the middle of the test's transaction: they must not close its connection."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def token(db: None) -> str:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    machine = rows.a_machine(cell)
    capacity.publish(cell=cell.name, capacity=rows.LARGE, revision=1)
    job = people.submit(people.principal("ann", tenant=tenant), cell, people.a_file(priority=0))
    people.bring_up(job, machine)
    _, secret = token_issue(
        principal=system("test"),
        user=people.a_user("sre", sre=True),
        name="fuzz",
        scopes=[s.value for s in Scope],
    )
    return secret


# Job files have their own tests, and making them up takes minutes; logs, and who answers for a cell's names, need
# processes that don't run here.
JOB_FILES = ["jobs_submit", "jobs_submit_bulk", "jobs_apply", "jobs_plan", "jobs_update"]


@document.exclude(path_regex="/(login|logs)/").exclude(operation_id=[*JOB_FILES, "bns_cell"]).parametrize()
@settings(
    max_examples=4, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_nothing_sent_is_an_error_of_ours(case: schemathesis.Case, token: str) -> None:
    """In a cell, for a tenant, on a machine that exist, so that bodies are reached."""
    known = {"cell": "cc", "tenant": "ubar", "job": "web", "hostname": "m1", "host": "m1"}
    for name in set(known) & set(case.path_parameters or {}):
        if len(str(case.path_parameters[name])) % 2:
            case.path_parameters[name] = known[name]
    with transaction.atomic():
        case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=[not_a_server_error])
        transaction.set_rollback(True)
