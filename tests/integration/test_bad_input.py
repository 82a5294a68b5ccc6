"""Tests of bad input: a clear error names the field, and no row, revision or token changes.

Requests are answered in this process. `test_bad_input_wire.py` sends others to the real web process. `test_link.py` and
`test_join.py` test input from machines.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.db import transaction
from django.test import Client
from pytest_django.plugin import DjangoDbBlocker

from quota import clock
from quota.admission import published_capacity
from quota.models import Tenant, Token
from scheduling.journal import journal
from scheduling.models import Cell
from tests.integration import rows, world
from tests.integration.row_counts import row_counts

pytestmark = pytest.mark.django_db
JSON = "application/json"
CC = "/api/v1/cells/cc/"
JOBS, WEB = f"{CC}jobs/", f"{CC}jobs/ubar/web/"
HUGE = "9" * 400


@pytest.fixture(scope="module")
def cell(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Cell]:
    """Yield one cell with a job for all tests of this module. Each test rolls back its own changes."""
    with django_db_blocker.unblock(), transaction.atomic():
        cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
        rows.grant(tenant, cell, "production")
        rows.a_machine(cell)
        with transaction.atomic():
            published_capacity.publish(cell=cell.name, capacity=rows.LARGE, revision=1)
        world.submit(world.principal("ann", tenant=tenant), cell, world.a_file())
        yield cell
        transaction.set_rollback(True)


@pytest.fixture(scope="module")
def everywhere(cell) -> Client:
    """Return a client of a user who may do everything, so that only bad input can cause a rejection."""
    return world.bearer(world.a_user("root", tenant=rows.a_tenant("ubar"), sre=True))


@pytest.fixture
def root(everywhere) -> Client:
    cache.clear()  # forget the attempts to sign in
    return everywhere


@pytest.fixture
def unchanged(cell, root) -> Iterator[None]:
    """Check after the test that the number of rows of each table and the cell's revision have not changed."""
    before, revision = row_counts(), journal.newest(cell.id)
    yield
    assert (row_counts(), journal.newest(cell.id)) == (before, revision)


def refused(answer: Any, *, status: int | None = None) -> dict[str, Any]:
    """Check that an answer is a problem document with a status of 4xx, and return the document."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.content[:2000])
    assert answer["Content-Type"] == "application/problem+json", answer.content[:500]
    if status is not None:
        assert answer.status_code == status, answer.content[:2000]
    body: dict[str, Any] = answer.json()
    assert body["code"]
    assert body["detail"]
    assert len(answer.content) < 20_000, "an answer must not echo"
    return body


def job_text(**changes: Any) -> str:
    return json.dumps(world.a_file(**{"name": "fresh", **changes}))


def task_text(**changes: Any) -> str:
    return json.dumps(world.with_task("fresh", **changes))


BAD_FILES = [
    ("it does not parse", b'{"name": "fresh", "task"', "file"),
    ("it is cut in a character", '{"name": "ü'.encode()[:-1], "file"),
    ("it is not UTF-8", b'{"name": "\xff\xfe", "task": {"command": ["x"]}}', "file"),
    ("it is UTF-16", '{"name": "fresh"}'.encode("utf-16"), "file"),
    ("it is not an object", b'"fresh"', "file"),
    ("it holds NaN", b'{"name": "fresh", "tasks": NaN}', "file"),
    ("it is nested deep", b"[" * 50_000 + b"]" * 50_000, "file"),
    ("its task is nested deep", b'{"name": "fresh", "task": ' + b'{"a":' * 30_000 + b"1" + b"}" * 30_001, "file"),
    ("it has one level too many", b'{"name": "fresh", "task": {"env": {"A": ' + b"[" * 62 + b"]" * 62 + b"}}}", "file"),
    ("a label holds half a character", b'{"name":"fresh","task":{"command":["x"]},"labels":{"a":"\\ud800"}}', "file"),
    ("an unknown field", job_text(taks=3), "taks"),
    ("an unknown field inside", task_text(limits={}), "task.limits"),
    ("a name of nothing", job_text(name=""), "name"),
    ("no task", json.dumps({"name": "fresh"}), "task"),
    ("a negative quantity", task_text(limit={"cpu": "-1"}), "task.limit.cpu"),
    ("a negative number", task_text(limit={"ram": -1}), "task.limit.ram"),
    ("an absurd quantity", task_text(limit={"ram": "9999999Ti"}), "task.limit.ram"),
    ("an absurd number", task_text(limit={"ram": 10**40}), "task.limit.ram"),
    ("an absurd sum", task_text(tasks=100_000, limit={"ram": "15Ti"}), "task.limit"),
    ("a quantity of letters", task_text(limit={"cpu": "much"}), "task.limit.cpu"),
    ("a quantity of a list", task_text(limit={"cpu": [1]}), "task.limit.cpu"),
    ("a quantity that is true", task_text(limit={"cpu": True}), "task.limit.cpu"),
    ("an unknown resource", task_text(limit={"gold": 1}), "task.limit.gold"),
    ("no tasks", job_text(tasks=0), "tasks"),
    ("fewer than no tasks", job_text(tasks=-3), "tasks"),
    ("too many tasks", job_text(tasks=100_001), "tasks"),
    ("tasks beyond counting", job_text(tasks=10**30), "tasks"),
    ("half a task", job_text(tasks=1.5), "tasks"),
    ("a priority of no band", job_text(priority=5000), "priority"),
    ("a negative priority", job_text(priority=-1), "priority"),
    ("a priority beyond counting", job_text(priority=10**25), "priority"),
    ("an unknown band", job_text(priority="royal"), "priority"),
    ("a name with capitals", job_text(name="Fresh"), "name"),
    ("a name with a dot", job_text(name="a.b"), "name"),
    ("a name too long", job_text(name="a" * 64), "name"),
    ("a name with a line after it", job_text(name="fresh\n"), "name"),
    ("a name in Greek", job_text(name="λ"), "name"),
    ("a tenant that is not a label", job_text(tenant="U bar"), "tenant"),
    ("another cell", job_text(cell="dd"), "cell"),
    ("NUL in the command", task_text(command=["a\0b"]), "task.command[0]"),
    ("NUL in the environment", task_text(env={"A": "\0"}), "task.env.A"),
    ("NUL in the name of a variable", task_text(env={"A\0": "x"}), "task.env.A\0"),
    ("NUL in a label", job_text(labels={"a": "\0"}), "labels.a"),
    ("NUL in the name of a label", job_text(labels={"a\0": "b"}), "labels.a\0"),
    (
        "NUL in a constraint",
        task_text(constraints=[{"attribute": "a\0", "relation": "present"}]),
        "task.constraints[0].attribute",
    ),
    ("NUL in the folder", task_text(working_dir="/a\0"), "task.working_dir"),
    ("NUL in an override", job_text(overrides={"1": {"command": ["\0"]}}), "overrides.1.command[0]"),
    ("an override of no task", job_text(overrides={"7": {}}), "overrides.7"),
    ("an override of a number beyond counting", job_text(overrides={HUGE: {}}), f"overrides.{HUGE}"[:200]),
    ("a port twice", task_text(ports=["a", "a"]), "task.ports[1]"),
    ("a health check of no port", task_text(health={"http": "/", "port": "grpc"}), "task.health.port"),
    ("an environment of a megabyte", task_text(env={"A": "x" * 10**6}), "task.env"),
    ("another version of the API", job_text(apiVersion="borg/v9"), "apiVersion"),
]


@pytest.mark.parametrize("body, field", [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES])
def test_a_bad_job_file_names_its_field_at_every_door(root, unchanged, body, field) -> None:
    doors = [root.post(JOBS, body, content_type=JSON), root.post(f"{WEB}update/", body, content_type=JSON)]
    doors.append(root.put(f"{JOBS}ubar/fresh/", body, content_type=JSON))
    doors.append(root.post(f"{JOBS}ubar/fresh/plan/", body, content_type=JSON))
    for number, answer in enumerate(doors):
        fields = refused(answer, status=422)["fields"]
        assert field in fields or (number > 0 and fields.keys() <= {"name", "file"}), fields


@pytest.mark.parametrize("levels", [65, 900, 50_000])
def test_json_that_is_nested_too_deeply_is_rejected_with_the_limit(root, unchanged, levels) -> None:
    answer = root.post("/api/v1/tenants/", b'{"a":' * levels + b"1" + b"}" * levels, content_type=JSON)
    assert "nested too deeply: more than 64 levels" in refused(answer, status=400)["detail"]


@pytest.mark.parametrize("body, field", [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES])
def test_a_bad_job_file_hinders_no_other_of_a_bulk(root, unchanged, body, field) -> None:
    body = body.encode() if isinstance(body, str) else body
    answer = root.post(f"{CC}jobs:bulk?dry_run=1", b"[" + body + b"," + job_text().encode() + b"]", content_type=JSON)
    if field == "file" and answer.status_code != 200:  # in this case there is no list
        assert "file" in refused(answer, status=422)["fields"]
        return
    found = answer.json()
    assert [verdict["outcome"] for verdict in found["results"]] == ["refused", "submitted"]
    assert field in found["results"][0]["problem"]["fields"]


@pytest.mark.parametrize(
    "path, wrong",
    [
        ("/api/v1/cells/nowhere/jobs/", "cell"),
        ("/api/v1/cells/nowhere/jobs:bulk", "cell"),
        ("/api/v1/cells/nowhere/jobs/ubar/web/kill/", "cell"),
        ("/api/v1/cells/nowhere/join-tokens/", "cell"),
        ("/api/v1/cells/nowhere/machines/m1:drain", "cell"),
        (f"{JOBS}?", "tenant"),
        (f"{JOBS}ubar/none/update/", "job"),
        (f"{JOBS}ubar/none/undo/", "job"),
        (f"{CC}machines/m9:drain", "machine"),
    ],
)
def test_what_does_not_exist_is_named(root, unchanged, path, wrong) -> None:
    assert wrong in refused(root.post(path, job_text(tenant="nobody"), content_type=JSON), status=404)["fields"]


def test_a_missing_and_a_foreign_and_a_revoked_token_do_nothing(root, cell) -> None:
    revoked = world.bearer(world.a_user("ann"))
    Token.objects.update(revoked_at="2026-01-01T00:00:00Z")
    before, revision = row_counts(), journal.newest(cell.id)
    headers = ["Bearer borg_x_y", "Bearer nonsense", "Bearer", "Basic YTpi", "Bearer \xff\x00"]
    for client in (revoked, Client(), *(Client(headers={"authorization": header}) for header in headers)):
        for answer in (
            client.post(JOBS, job_text(), content_type=JSON),
            client.delete(WEB),
            client.post(f"{CC}machines/m1:drain", {"reason": "x"}, content_type=JSON),
        ):
            assert refused(answer, status=401)["code"] in ("not-authenticated", "authentication-failed")
    assert (row_counts(), journal.newest(cell.id)) == (before, revision)


def test_the_token_of_another_tenant_sees_and_changes_nothing(root, cell) -> None:
    other = world.bearer(world.a_user("eve", tenant=rows.a_tenant("other")))
    before, revision = row_counts(), journal.newest(cell.id)
    for answer in (
        other.get(WEB),
        other.delete(WEB),
        other.post(f"{WEB}undo/"),
        other.post(f"{WEB}kill/", {}, content_type=JSON),
        other.post(f"{WEB}update/", job_text(name="web"), content_type=JSON),
        other.put(WEB, job_text(name="web"), content_type=JSON),
        other.post(JOBS, job_text(tenant="ubar"), content_type=JSON),
    ):
        assert refused(answer, status=404)["code"] == "not-found"
    assert (row_counts(), journal.newest(cell.id)) == (before, revision)


BAND = {"low": 100, "high": 119, "prod": False, "preempts_within": True}
QUOTE = {"tenant": "ubar", "cell": "cc", "band": "batch", "amounts": {"cpu": 1}, "ends_at": "2999-01-01T00:00Z"}
ORDER = {**QUOTE, "ends_at": (clock.now() + dt.timedelta(days=9)).replace(microsecond=0).isoformat()}
ORDERS, MARKET, RULE = "/api/v1/quota/orders/", "/api/v1/quota/markets/cc/", "/api/v1/quota/rules/7/"
CALENDAR = "/api/v1/quota/calendar/?cell=cc&band=batch"
BAD_BODIES = [
    ("POST", ORDERS, {**ORDER, "tenant": "none"}, "tenant"),
    ("POST", ORDERS, {**ORDER, "cell": "dd"}, "cell"),
    ("POST", ORDERS, {**ORDER, "band": "gold"}, "band"),
    ("POST", ORDERS, {**ORDER, "amounts": {"cpu": "-1"}}, "amounts"),
    ("POST", ORDERS, {**ORDER, "amounts": {"ports": 1}}, "amounts"),
    ("POST", ORDERS, {**ORDER, "amounts": {"cpu": 2**43}}, "amounts.cpu"),
    ("POST", ORDERS, {**ORDER, "ends_at": "2999-01-01T00:00Z"}, "ends_at"),
    ("POST", ORDERS, {**ORDER, "ends_at": "2001-01-01T00:00Z"}, "ends_at"),
    ("POST", ORDERS, {**ORDER, "starts_at": "2001-01-01T00:00Z"}, "starts_at"),
    ("POST", ORDERS, {**ORDER, "starts_at": "9999-12-31T23:59:59-14:00"}, "starts_at"),
    ("POST", ORDERS, {**ORDER, "quote": 10**30}, "quote"),
    ("POST", ORDERS, {**ORDER, "quote": 2**62}, "quote"),
    ("POST", ORDERS, {**ORDER, "price": 1}, "price"),
    ("POST", ORDERS, {**ORDER, "state": "active"}, "state"),
    ("POST", ORDERS, {**ORDER, "note": "a\0"}, "note"),
    ("POST", ORDERS, {**ORDER, "key": "k" * 65}, "key"),
    ("PUT", MARKET, {"headroom_milli": 1001}, "headroom_milli"),
    ("PUT", MARKET, {"grace_hours": 10**30}, "grace_hours"),
    ("PUT", MARKET, {"longest_days": 0}, "longest_days"),
    ("PUT", MARKET, {"after_grace": "kill"}, "after_grace"),
    ("PUT", MARKET, {"tax": 1}, "tax"),
    ("PUT", "/api/v1/quota/markets/dd/", {"selling": True}, "cell"),
    ("PUT", RULE, {"approver": "nobody"}, "approver"),
    ("PUT", RULE, {"approver": "sre", "tenant": "none"}, "tenant"),
    ("PUT", RULE, {"approver": "sre", "band": "gold"}, "band"),
    ("PUT", RULE, {"approver": "sre", "cell": "a\0"}, "cell"),
    ("PUT", RULE, {"approver": "sre", "most_price": -1}, "most_price"),
    ("PUT", RULE, {"approver": "sre", "most_price": 2**63}, "most_price"),
    ("PUT", f"/api/v1/quota/rules/{10**9}/", {"approver": "sre"}, "rank"),
    ("POST", f"{WEB}kill/", {"indexes": [-1]}, "indexes"),
    ("POST", f"{WEB}kill/", {"indexes": [2**31]}, "indexes"),
    ("POST", f"{WEB}kill/", {"indexes": "all"}, "indexes"),
    ("POST", f"{WEB}kill/", {"indexes": []}, "indexes"),
    ("POST", f"{WEB}kill/", {"reason": "a\0b"}, "reason"),
    ("POST", f"{WEB}kill/", {"reason": "x" * 301}, "reason"),
    ("POST", f"{WEB}kill/", {"task": [1]}, "task"),
    ("POST", f"{WEB}kill/", [1], "non_field_errors"),
    ("POST", f"{CC}machines/m1:drain", {"reason": "\0"}, "reason"),
    ("POST", f"{CC}machines/m1:drain", {"reason": ["x"]}, "reason"),
    ("POST", f"{CC}join-tokens/", {"uses": 0}, "uses"),
    ("POST", f"{CC}join-tokens/", {"uses": 10**30}, "uses"),
    ("POST", f"{CC}join-tokens/", {"ttl_s": -1}, "ttl_s"),
    ("POST", f"{CC}join-tokens/", {"ttl_s": 1e300}, "ttl_s"),
    ("POST", f"{CC}join-tokens/", {"ttl": 5}, "ttl"),
    ("POST", "/api/v1/tokens/", {"name": "\0"}, "name"),
    ("POST", "/api/v1/tokens/", {"name": "x", "scopes": []}, "scopes"),
    ("POST", "/api/v1/tokens/", {"name": "x", "tenant": "\0"}, "tenant"),
    ("POST", "/api/v1/tokens/", {"name": "x", "tenant": "none"}, "tenant"),
    ("POST", "/api/v1/tokens/", {"name": "x", "expires_at": "9999-99-99"}, "expires_at"),
    ("POST", "/api/v1/tokens/", {"name": "x", "expires_at": "0001-01-01T00:00:00+14:00"}, "expires_at"),
    ("POST", "/api/v1/tokens/", {"name": "x", "expires_at": "9999-12-31T23:59:59-14:00"}, "expires_at"),
    ("POST", "/api/v1/login/", {"username": "\0", "password": "x", "name": "x"}, "username"),
    ("POST", "/api/v1/login/", {"username": "root", "password": "\0", "name": "x"}, "password"),
    ("POST", "/api/v1/tenants/", {"name": "U"}, "name"),
    ("POST", "/api/v1/tenants/", {"name": "machine"}, "name"),
    ("POST", "/api/v1/tenants/", {"name": "a\0"}, "name"),
    ("POST", "/api/v1/tenants/", {"name": "a", "contact": "nobody"}, "contact"),
    ("PUT", "/api/v1/tenants/ubar/", {"title": "\0"}, "title"),
    ("PUT", "/api/v1/tenants/ubar/", {"title": "t", "max_jobs": -1}, "max_jobs"),
    ("PUT", "/api/v1/tenants/ubar/", {"title": "t", "max_jobs": 10**30}, "max_jobs"),
    ("PUT", "/api/v1/tenants/ubar/members/ann/", {"role": "king"}, "role"),
    ("POST", "/api/v1/tenants/", {"name": "a", "parent": "nobody"}, "parent"),
    ("POST", "/api/v1/tenants/", {"name": "a", "time_zone": "Mars/Olympus"}, "time_zone"),
    ("PUT", "/api/v1/tenants/ubar/", {"title": "t", "time_zone": "\0"}, "time_zone"),
    ("PUT", "/api/v1/tenants/ubar/", {"title": "t", "max_teams": 10**30}, "max_teams"),
    ("POST", "/api/v1/tenants/ubar/move/", {}, "parent"),
    ("POST", "/api/v1/tenants/ubar/move/", {"parent": "ubar"}, "parent"),
    ("POST", "/api/v1/tenants/ubar/move/", {"parent": "nobody"}, "parent"),
    ("POST", "/api/v1/tenants/ubar/invitations/", {"email": "x", "role": "viewer"}, "email"),
    ("POST", "/api/v1/tenants/ubar/invitations/", {"email": "a@b.org\nBcc: c@d.org", "role": "viewer"}, "email"),
    ("POST", "/api/v1/tenants/ubar/invitations/", {"email": "a@b.org", "role": "king"}, "role"),
    (
        "POST",
        "/api/v1/tenants/ubar/invitations/",
        {"email": "a@b.org", "role": "viewer", "expires_at": "2999-01-01T00:00Z"},
        "expires_at",
    ),
    ("DELETE", "/api/v1/tenants/ubar/invitations/none/", None, "invitation"),
    ("POST", "/api/v1/tenants/ubar/service-accounts/", {"name": "A b", "role": "viewer"}, "name"),
    ("POST", "/api/v1/tenants/ubar/service-accounts/", {"name": "ci", "role": "owner"}, "role"),
    ("POST", "/api/v1/tenants/ubar/service-accounts/none/tokens/", {"name": "t"}, "service account"),
    ("PUT", "/api/v1/tenants/ubar/service-accounts/none/", {"enabled": "perhaps"}, "enabled"),
    ("POST", "/api/v1/capabilities/", {"user": "ann", "kind": "fly", "reason": "x"}, "kind"),
    ("POST", "/api/v1/capabilities/", {"user": "nobody", "kind": "shell", "reason": "x"}, "user"),
    ("POST", "/api/v1/capabilities/", {"user": "ann", "kind": "shell", "reason": "x", "cell": "\n"}, "cell"),
    (
        "POST",
        "/api/v1/capabilities/",
        {"user": "ann", "kind": "shell", "reason": "x", "expires_at": "2999-01-01T00:00Z"},
        "expires_at",
    ),
    ("POST", "/api/v1/capabilities/requests/", {"tenant": "nobody", "kind": "shell", "reason": "x"}, "tenant"),
    ("PUT", "/api/v1/capabilities/requests/1/", {"granted": "perhaps"}, "granted"),
    ("PUT", "/api/v1/tenants/ubar/members/nobody/", {"role": "owner"}, "user"),
    (
        "POST",
        "/api/v1/quota/grants/",
        {"tenant": "ubar", "cell": "cc", "band": "batch", "amounts": {"cpu": 10**30}},
        "amounts",
    ),
    (
        "POST",
        "/api/v1/quota/grants/",
        {"tenant": "ubar", "cell": "cc", "band": "batch", "amounts": {"cpu": None}},
        "amounts",
    ),
    ("POST", "/api/v1/quota/grants/", {"tenant": "ubar", "cell": "c\0", "band": "batch", "amounts": {}}, "cell"),
    ("POST", "/api/v1/quota/grants/", {"tenant": "ubar", "cell": "cc", "band": "\0", "amounts": {"cpu": 1}}, "band"),
    ("PUT", "/api/v1/quota/bands/batch/", {**BAND, "low": 10**30}, "low"),
    ("PUT", "/api/v1/quota/bands/batch/", {**BAND, "price_milli": -1}, "price_milli"),
    ("PUT", "/api/v1/quota/bands/batch/", {**BAND, "prod": True, "oversell_milli": 1001}, "oversell_milli"),
    ("PUT", "/api/v1/quota/bands/batch/", {"low": 100}, "high"),
    ("PUT", "/api/v1/quota/bands/Batch/", BAND, "name"),
    ("PUT", "/api/v1/quota/bands/batch/", {**BAND, "colour": "blue"}, "colour"),
    ("POST", "/api/v1/quota/prices/", {"cell": "c\0", "base": {}}, "cell"),
    ("POST", "/api/v1/quota/prices/", {"cell": "dd", "base": {}}, "cell"),
    ("POST", "/api/v1/quota/prices/", {"cell": "cc", "base": {"cpu": 10**400}}, "base.cpu"),
    ("POST", "/api/v1/quota/prices/", {"cell": "cc", "base": [1]}, "base"),
    ("POST", "/api/v1/quota/prices/", {"cell": "cc", "base": {}, "note": "a\0"}, "note"),
    ("POST", "/api/v1/quota/prices/", {"cell": "cc", "base": {}, "curve": [[0, 2], [1, 1]]}, "curve.1"),
    ("POST", "/api/v1/quota/prices/", {"cell": "cc", "base": {}, "valid_from": "2001-01-01T00:00Z"}, "valid_from"),
    ("POST", "/api/v1/quota/prices/what-if/", {"cell": "cc", "base": {}, "usage": {"gold": 1}}, "usage.gold"),
    ("POST", "/api/v1/quota/prices/what-if/", {"cell": "cc", "base": {}, "from": 1}, "from"),
    ("POST", "/api/v1/quota/quotes/", {**QUOTE, "tenant": "none"}, "tenant"),
    ("POST", "/api/v1/quota/quotes/", {**QUOTE, "amounts": {"cpu": "-1"}}, "amounts"),
    ("POST", "/api/v1/quota/quotes/", {**QUOTE, "amounts": {}}, "amounts"),
    ("POST", "/api/v1/quota/quotes/", {**QUOTE, "amounts": {"gold": 1}}, "amounts"),
    ("POST", "/api/v1/quota/quotes/", {**QUOTE, "ends_at": "2001-01-01T00:00Z"}, "ends_at"),
    ("POST", "/api/v1/quota/quotes/", {**QUOTE, "ends_at": "9999-12-31T23:59:59-14:00"}, "ends_at"),
    ("POST", "/api/v1/quota/quotes/", {**QUOTE, "price": 1}, "price"),
    ("POST", "/api/v1/quota/quotes/", {**QUOTE, "band": "\0"}, "band"),
]


@pytest.mark.parametrize("method, path, body, field", BAD_BODIES)
def test_a_bad_value_of_a_body_names_its_field(root, unchanged, method, path, body, field) -> None:
    answer = root.generic(method, path, json.dumps(body), content_type=JSON)
    assert field in refused(answer)["fields"]


@pytest.mark.parametrize("path", [f"{WEB}kill/", f"{CC}join-tokens/", "/api/v1/tokens/", "/api/v1/tenants/"])
@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 50_000, b'{"name": ' + b"9" * 5000 + b"}", b"5", b"null"])
def test_a_body_that_is_not_a_json_object_is_reported(root, unchanged, path, body) -> None:
    refused(root.post(path, body, content_type=JSON))


BAD_PATHS = [
    "/api/v1/cells/c%00c/",
    "/api/v1/cells/%FF%FE/",
    f"/api/v1/cells/{'c' * 3000}/",
    f"{CC}machines/m%001/",
    f"{JOBS}ub%00ar/web/",
    f"{JOBS}ubar/w%00eb/tasks/",
    f"{WEB}tasks/{HUGE}/",
    f"{WEB}tasks/99999999999/logs/",
    f"{WEB}tasks/-1/",
    f"{WEB}tasks/1e3/",
    "/api/v1/tenants/u%00bar/",
    "/api/v1/tenants/ubar/members/an%00n/",
    f"/api/v1/quota/grants/{HUGE}/",
    f"{ORDERS}{HUGE}/",
    f"{ORDERS}{HUGE}/cancel/",
    f"/api/v1/quota/rules/{HUGE}/",
    f"/api/v1/notices/channels/{HUGE}/",
    f"/api/v1/notices/channels/{HUGE}/secret/",
    "/api/v1/notices/?tenant=c%00",
    "/api/v1/quota/markets/c%00/",
    "/api/v1/quota/calendar/?cell=c%00",
    "/api/v1/tokens/k%00/",
    "/bns/c%00/ubar/web",
    f"/bns/cc/ubar/web/{HUGE}",
    "/bns/cc/ubar/web/-1",
    "/bns/cc/ubar/web/%00",
    "/bns/..%2f../ubar/web",
]


@pytest.mark.parametrize("path", BAD_PATHS)
@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
def test_a_path_of_nonsense_is_not_an_internal_error(root, unchanged, method, path) -> None:
    answer = root.generic(method, path, '{"role": "owner"}' if "members" in path else "{}", content_type=JSON)
    assert 400 <= answer.status_code < 500, answer.content[:2000]


BAD_QUERIES = [
    (f"{JOBS}?state=asleep", "state"),
    (f"{JOBS}?label=x", "label"),
    (f"{JOBS}?tenant=%00", "tenant"),
    (f"{JOBS}?label=a%00=b", "label"),
    (f"{WEB}tasks/?state=up", "state"),
    (f"{CC}machines/?state=broken", "state"),
    (f"{WEB}events/?limit=-1", "limit"),
    (f"{WEB}events/?limit=0", "limit"),
    (f"{WEB}events/?limit=1001", "limit"),
    (f"{WEB}events/?limit={HUGE}", "limit"),
    (f"{WEB}events/?limit=x", "limit"),
    (f"{WEB}events/?cursor=x", "cursor"),
    (f"{WEB}events/?cursor={HUGE}.1", "cursor"),
    (f"{WEB}events/?cursor=1.-1", "cursor"),
    (f"{WEB}events/?cursor=%D9%A3.%D9%A3x", "cursor"),
    (f"{CC}events/?cursor=%00", "cursor"),
    (f"{WEB}why/?index=-1", "index"),
    (f"{WEB}why/?index={HUGE}", "index"),
    (f"{WEB}tasks/0/logs/?offset={HUGE}", "offset"),
    (f"{WEB}tasks/0/logs/?limit=-1", "limit"),
    (f"{WEB}tasks/0/logs/?stream=stdin", "stream"),
    (f"{WEB}tasks/0/logs/?stream=%00", "stream"),
    (f"{ORDERS}?state=lost", "state"),
    (f"{CALENDAR}&days=0", "days"),
    (f"{CALENDAR}&days={HUGE}", "days"),
    (f"{CALENDAR}&first=soon", "first"),
    (f"{CALENDAR}&first=9999-12-31", "first"),
    (f"{CALENDAR}&time_zone=../etc", "time_zone"),
    (f"{CALENDAR}&time_zone=Mars", "time_zone"),
]


@pytest.mark.parametrize("path, field", BAD_QUERIES)
def test_a_bad_query_names_its_field(root, unchanged, path, field) -> None:
    assert field in refused(root.get(path), status=422)["fields"]


PAGED = [
    JOBS,
    f"{WEB}tasks/",
    f"{WEB}versions/",
    f"{CC}machines/",
    "/api/v1/cells/",
    "/api/v1/tokens/",
    "/api/v1/tenants/ubar/invitations/",
    "/api/v1/tenants/ubar/service-accounts/",
    "/api/v1/capabilities/",
    "/api/v1/capabilities/requests/",
    "/api/v1/records/",
    "/api/v1/tenants/",
    "/api/v1/tenants/ubar/members/",
    "/api/v1/quota/bands/",
    "/api/v1/quota/grants/",
    ORDERS,
    "/api/v1/quota/rules/",
    "/api/v1/quota/shortfalls/",
    "/api/v1/notices/",
    "/api/v1/notices/channels/",
]


@pytest.mark.parametrize("path", PAGED)
@pytest.mark.parametrize(
    "query",
    [
        "limit=-1",
        "limit=0",
        "limit=1001",
        f"limit={HUGE}",
        "limit=x",
        "limit=%D9%A3",
        "cursor=x",
        "cursor=%00",
        "cursor=cD0lMDA=",
        "cursor=cD14",
        "cursor=bz0tMQ==",
        "cursor=cD05OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5",
    ],
)
def test_a_page_that_is_none_names_its_field(root, unchanged, path, query) -> None:
    """A page size or cursor that is not valid is rejected with the name of its field.

    The cursors are p=%00, p=x, o=-1 and p=99999… in base64. No page contains such a cursor.
    """
    assert query.partition("=")[0] in refused(root.get(f"{path}?{query}"), status=422)["fields"]


@pytest.mark.parametrize("content_type", ["application/yaml", "text/plain", "multipart/form-data", ""])
def test_another_type_of_body_is_refused(root, unchanged, content_type) -> None:
    for path in (JOBS, f"{WEB}kill/", f"{CC}jobs:bulk", "/api/v1/tokens/"):
        answer = root.post(path, b"name: web", content_type=content_type)
        assert refused(answer, status=415)["code"] == "unsupported-media-type"


def test_a_switch_that_is_misspelt_changes_nothing(root, unchanged) -> None:
    for answer in (
        root.post(f"{JOBS}?dry_run=yess", job_text(), content_type=JSON),
        root.delete(f"{WEB}?dry_run=ture"),
        root.post(f"{WEB}undo/?dry_run=%00"),
        root.post(f"{WEB}kill/?dry_run=2", {}, content_type=JSON),
        root.put(f"{WEB}?dry_run=-", job_text(name="web", tasks=1), content_type=JSON),
    ):
        assert "dry_run" in refused(answer, status=422)["fields"]


def test_too_many_jobs_at_once_are_refused_together(root, unchanged, settings) -> None:
    settings.BORG_MAX_BULK_JOBS = 2
    files = json.dumps([world.a_file(f"j{n}") for n in range(3)])
    body = refused(root.post(f"{CC}jobs:bulk", files, content_type=JSON), status=413)
    assert (body["code"], body["figures"]) == ("too-many-jobs", {"jobs": 3, "most": 2})


def test_too_many_jobs_of_a_tenant_are_refused_with_the_number(root, cell) -> None:
    """A job beyond the tenant's limit of jobs is rejected, and the only change is an event in the journal."""
    Tenant.objects.filter(name="ubar").update(max_jobs=1)
    before = row_counts()
    body = refused(root.post(JOBS, job_text(), content_type=JSON), status=403)
    assert (body["code"], body["figures"]) == ("too-many-jobs", {"live": 1, "most": 1})
    assert {name for name, number in row_counts().items() if number != before[name]} == {"scheduling_event"}


@pytest.mark.parametrize("address", ["/cells/c%00/", "/jobs/?state=%00", "/admin/scheduling/job/?q=%00"])
def test_a_page_whose_address_holds_a_nul_is_refused_in_words(address: str) -> None:
    answer = Client().get(address)
    assert (answer.status_code, "NUL" in answer.text) == (400, True)
