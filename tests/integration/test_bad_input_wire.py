"""Tests of bad input that reaches the real servers: bodies and bytes on the wire, and messages of machines."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus

from borglet.messages import Health, Phase, Refusal, TaskKey, TaskReport
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import GENERAL_SCOPES, system
from scheduling.journal import journal
from scheduling.machines.joining import join_token_issue
from tests.integration import portal_server, rows, world
from tests.integration.link_world import Played, running_link
from tests.integration.row_counts import row_counts

pytestmark = pytest.mark.django_db(transaction=True)  # the real servers read only committed rows
CC = "/api/v1/cells/cc/"
JOBS, WEB = f"{CC}jobs/", f"{CC}jobs/ubar/web/"
BODY_BYTES = 200_000


@pytest.fixture(scope="module")
def portal(django_db_setup, tmp_path_factory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("portal") / "log"
    with portal_server.running(log, BORG_MAX_BODY_BYTES=str(BODY_BYTES)) as url:
        yield url


@pytest.fixture
def cell():
    return rows.a_cell()


def job_text(**changes: Any) -> str:
    return json.dumps(world.a_file(**{"name": "fresh", **changes}))


class Wire:
    """A connection to the real web process that sends requests which no client library would send."""

    def __init__(self, url: str, secret: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        self.headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, str, dict[str, Any]]:
        chunked = not isinstance(body, bytes)
        self.connection.request("POST", path, body, {**self.headers, **headers}, encode_chunked=chunked)
        answer = self.connection.getresponse()
        text = answer.read()
        self.connection.close()
        return answer.status, answer.headers["content-type"], json.loads(text)


@pytest.fixture
def wire(portal, cell) -> Wire:
    tenant = rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    rows.a_machine(cell)
    world.submit(world.principal("ann", tenant=tenant), cell, world.a_file())
    user = world.a_user("root", tenant=tenant, sre=True)
    scopes = [scope.value for scope in GENERAL_SCOPES]
    return Wire(portal, token_issue(principal=system("test"), user=user, name="wire", scopes=scopes)[1])


@pytest.mark.parametrize("path", [JOBS, f"{CC}jobs:bulk", f"{WEB}kill/", f"{WEB}update/", "/api/v1/tokens/"])
def test_a_body_too_large_is_a_413_of_the_real_server(wire, cell, path) -> None:
    before, revision = row_counts(), journal.newest(cell.id)
    large = b'{"name": "' + b"x" * BODY_BYTES + b'"}'
    in_parts = iter([large[: BODY_BYTES // 2], large[BODY_BYTES // 2 :]])
    for body in (large, in_parts):
        status, kind, problem = wire.post(path, body)
        assert (status, kind, problem["code"]) == (413, "application/problem+json", "too-large")
    assert (row_counts(), journal.newest(cell.id)) == (before, revision)


def test_a_body_of_unknown_length_is_read_all_the_same(wire, cell) -> None:
    """A body without a Content-Length header is read. If it were ignored, the first request would kill all tasks."""
    status, _, answer = wire.post(f"{WEB}kill/?dry_run=1", iter([b'{"indexes"', b": [1]}"]))
    assert (status, answer["killed"]) == (200, 1)
    status, _, answer = wire.post(JOBS, iter([job_text()[:9].encode(), job_text()[9:].encode()]))
    assert (status, answer["outcome"]) == (201, "submitted")


def test_bytes_that_are_not_text_reach_the_real_server_and_change_nothing(wire, cell) -> None:
    before, revision = row_counts(), journal.newest(cell.id)
    cases = [
        (JOBS, b"\xff\xfe{", 422),
        (f"{WEB}kill/", b'{"reason": "\xff"}', 400),
        (f"{CC}jobs:bulk", b"[" * 60_000, 422),
        (f"{WEB}kill/", b"[" * 60_000, 400),
        (JOBS, job_text(labels={"a": "\0"}).encode(), 422),
        (f"{WEB}kill/", b'{"reason": "a\\u0000b"}', 422),
        (f"{WEB}kill/", b'{"reason": "\\ud800"}', 422),
    ]
    for path, body, status in cases:
        answered = wire.post(path, body)
        assert (answered[0], answered[1]) == (status, "application/problem+json"), (path, body[:60], answered)
    assert wire.post(JOBS, b"a: 1", **{"Content-Type": "text/yaml"})[0] == 415
    assert (row_counts(), journal.newest(cell.id)) == (before, revision)


def test_a_machine_that_lies_or_stammers_changes_nothing(cell) -> None:
    """Wrong secrets, used tokens, half messages and a report from before a restore change no row and no revision."""
    with running_link() as link, link.machine(cell) as liar, link.machine(cell, "m2") as stammerer:
        for machine in (liar, stammerer):
            machine.report(machine.poll_with_desired())
        token = join_token_issue(principal=rows.ME, cell=cell)
        assert link.join(token, "m3")[0] == 200
        before, revision = row_counts(), journal.newest(cell.id)
        for hostname in ("m1", "m2", "nobody"):
            with pytest.raises(InvalidStatus) as caught:
                link.dial(hostname, "wrong")
            assert caught.value.response.status_code == 401
        for status, problem, field in (
            (*link.join(token, "m4"), "token"),
            (*link.join("nonsense", "m4"), "token"),
            (*link.request("POST", "/join", b'{"token": "t", "hos'), "body"),
        ):
            assert status in (403, 422)
            assert list(problem["fields"]) == [field]
        stranger = TaskReport(TaskKey("f" * 32, 0, 1), "cc/ubar/none/0", Phase.UP, Health.UNKNOWN)
        liar.report(liar.poll(), stranger, history_id="0" * 32)
        stammerer.socket.send('{"type":"report","session":1,"seq')
        refusals = [(answer.code, answer.field) for answer in (_refusal(liar), _refusal(stammerer))]
        assert refusals == [("other-history", "history_id"), ("malformed", "message")]
        assert (row_counts(), journal.newest(cell.id)) == (before, revision)


def _refusal(machine: Played) -> Refusal:
    while not isinstance(answer := machine.receive(), Refusal):
        pass
    return answer
