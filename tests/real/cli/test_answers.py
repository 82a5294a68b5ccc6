"""Tests of `borgctl` against a portal with wrong or no answers: it prints an error and exits with status 1."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.borgctl import run

Answer = tuple[int, dict[str, str], bytes]


class Server(ThreadingHTTPServer):
    """An HTTP server whose answers a test chooses. It records all requests and their idempotency keys."""

    answers: Callable[[str], Answer]
    asked: list[tuple[str, str, str | None]]
    keys: list[str | None]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.asked.append((self.command, self.path, self.headers["Authorization"]))
        server.keys.append(self.headers["Idempotency-Key"])
        status, headers, body = server.answers(self.path)
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client did not wait for the answer
            self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server's spelling

    def log_message(self, format: str, *args: object) -> None:
        """Print no line per request."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.asked, server.keys = [], []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def borgctl(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "BORG_URL": f"http://127.0.0.1:{server.server_port}",
        "BORG_CELL": "cc",
        "BORG_TENANT": "ubar",
        "BORG_TOKEN": "secret",
        "http_proxy": "http://127.0.0.1:1",
    }
    done = run(words, env=environment, cwd="/")
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize(
    "answer, told",
    [
        (
            (500, {"X-Request-ID": "r-77"}, b"<h1>"),
            "500 Internal Server Error; the portal's log has details about request r-77",
        ),
        ((502, {}, b""), "answered 502 Bad Gateway"),
        ((503, {}, b"[1]"), "answered 503 Service Unavailable"),
        ((404, {}, b'{"detail": "Not found."}'), "answered 404 Not Found"),
        ((422, {}, b'{"code": "invalid", "detail": "x: bad", "fields": ["x"]}'), "answered 422"),
        ((422, {}, b'{"code": "a", "detail": "x: bad", "fields": {"x": "bad", "y": "worse"}}'), "x: bad\n  y: worse"),
        (
            (301, {"Location": "https://elsewhere/"}, b""),
            "the portal is at https://elsewhere/; write this address into the profile",
        ),
        ((200, {}, b"<html>"), "is not JSON; check that this is a Borg Portal"),
        ((200, {}, b"\xff"), "is not JSON"),
        ((200, {}, b'{"next": null}'), "is not a list"),
        ((200, {}, b"[]"), "is not a list"),
        ((204, {}, b""), "is not a list"),
        ((200, {"Content-Length": "99"}, b"{"), "cannot reach the portal at http://127.0.0.1"),
        ((401, {}, b'{"code": "not-authenticated", "detail": "No token."}'), "No token. Sign in with `borgctl login`."),
    ],
)
def test_an_odd_answer_is_reported(server: Server, answer: Answer, told: str) -> None:
    server.answers = lambda path: answer
    if "Content-Length" in answer[1]:  # truncated: the connection ends before the body
        server.RequestHandlerClass.protocol_version = "HTTP/1.0"
    done = borgctl(server, "cells")
    assert (done.returncode, done.stdout) == (1, ""), done
    assert told in done.stderr
    assert json.loads(borgctl(server, "cells", "--json").stdout)["code"]


def test_pages_are_followed_by_their_place_and_the_token_stays_with_the_portal(server: Server) -> None:
    def answers(path: str) -> Answer:
        row = {"name": "b" if "cursor" in path else "a", "cluster": "", "site": "", "revision": 1}
        next_page = None if "cursor" in path else "http://internal.example:81/api/v1/cells/?cursor=a%3D%3D&limit=1"
        return 200, {}, json.dumps({"results": [row], "next": next_page}).encode()

    server.answers = answers
    done = borgctl(server, "cells", "--json")
    assert [row["name"] for row in json.loads(done.stdout)] == ["a", "b"]
    assert server.asked == [
        ("GET", "/api/v1/cells/", "Bearer secret"),
        ("GET", "/api/v1/cells/?cursor=a%3D%3D&limit=1", "Bearer secret"),
    ]


def test_a_following_goes_on_through_troubles_and_a_new_incarnation_until_the_end(server: Server) -> None:
    first = {"offset": 0, "end": 4, "text": "one\n"}
    logs = iter(
        [
            (409, {"code": "no-log", "detail": "has not run yet"}),
            (200, first),  # the task was placed meanwhile: the command asks again
            (200, first),
            (503, {"code": "machine-not-connected", "detail": "away"}),
            (200, {"offset": 4, "end": 4, "text": ""}),
            (200, {"offset": 0, "end": 5, "text": "\x1b[1mtwo"}),
            (200, {"offset": 5, "end": 10, "text": "three"}),
            (200, {"offset": 10, "end": 10, "text": ""}),
        ]
    )
    waits, runs, moved, ended = ("pending", 0), ("running", 1), ("running", 2), ("dead", 2)
    tasks = iter([waits, waits, runs, runs, moved, moved, ended, ended])

    def answers(path: str) -> Answer:
        if "/logs/" in path:
            status, body = next(logs)
        else:
            state, incarnation = next(tasks)
            status, body = 200, {"state": state, "incarnation": incarnation}
        return status, {}, json.dumps(body).encode()

    server.answers = answers
    done = borgctl(server, "logs", "web/0", "-f")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\n\x1b[1mtwothree", "")
    offsets = [path.partition("offset=")[2].partition("&")[0] for _, path, _ in server.asked if "/logs/" in path]
    assert offsets == ["-65536", "-65536", "0", "4", "4", "0", "5", "10"]


def test_following_with_json_is_a_document_a_line(server: Server) -> None:
    texts = iter(["a\n", "b\n", ""])

    def answers(path: str) -> Answer:
        body = {"text": next(texts), "end": 1} if "/logs/" in path else {"state": "dead", "incarnation": 1}
        return 200, {}, json.dumps(body).encode()

    server.answers = answers
    lines = borgctl(server, "logs", "web/0", "-f", "--json").stdout.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["a\n", "b\n"]


def test_following_what_does_not_exist_ends_at_once(server: Server) -> None:
    server.answers = lambda path: (404, {}, b'{"code": "not-found", "detail": "no job"}')
    assert borgctl(server, "logs", "web/0", "-f").returncode == 1
    assert len(server.asked) == 1


@pytest.mark.parametrize("held", ["/bns/cc/", "/api/v1/cells/cc/jobs/ubar/web/"])
def test_waiting_ends_in_its_time_whatever_the_portal_does(server: Server, held: str) -> None:
    job = {
        "state": "running",
        "outcome": "",
        "tasks_total": 1,
        "tasks_dead": 0,
        "tasks_up": 1,
        "tasks_running": 1,
        "tasks_pending": 0,
        "update": None,
        "revision": 7,
    }
    over = threading.Event()

    def answers(path: str) -> Answer:
        if path.startswith(held):
            over.wait(60)
        return 200, {}, json.dumps(job).encode()

    server.answers = answers
    done = borgctl(server, "wait", "web", "--for", "visible", "--timeout", "0.1")
    assert not over.is_set()
    over.set()
    assert (done.returncode, done.stdout) == (1, "")
    if held == "/bns/cc/":
        assert "is not visible after 0.1 s: " in done.stderr
        assert "but the portal has not reported the state of the name servers yet" in done.stderr
        assert server.asked[-1][1] == "/bns/cc/?within_s=0.800"
    else:
        assert "cannot reach the portal" in done.stderr


LOST = (0, {}, b"")  # the server closes the connection instead of an answer
AWAY = (503, {"Retry-After": "0"}, json.dumps({"code": "database-unavailable", "detail": "Away."}).encode())
JOB = json.dumps({"name": "web", "cell": "cc", "tenant": "ubar", "task": {"command": ["true"]}})
SUBMITTED = json.dumps({"outcome": "submitted", "tasks": {"added": 1}}).encode()


def _once_away(server: Server, answer: bytes) -> Callable[[str], Answer]:
    return lambda path: AWAY if len(server.asked) == 1 else (201, {}, answer)


def test_a_submission_is_repeated_with_its_key_during_an_outage(server: Server, tmp_path: Path) -> None:
    server.answers = _once_away(server, SUBMITTED)
    file = tmp_path / "web.json"
    file.write_text(JOB)
    done = borgctl(server, "submit", str(file))
    assert done.returncode == 0, done.stderr
    assert "Away. Trying again in 0 s." in done.stderr
    assert [method for method, _, _ in server.asked] == ["POST", "POST"]
    assert server.keys[0]
    assert server.keys[0] == server.keys[1]


def test_a_submission_is_repeated_with_its_key_when_its_connection_is_lost(server: Server, tmp_path: Path) -> None:
    server.answers = lambda path: LOST if len(server.asked) == 1 else (201, {}, SUBMITTED)
    file = tmp_path / "web.json"
    file.write_text(JOB)
    done = borgctl(server, "submit", str(file))
    assert done.returncode == 0, done.stderr
    assert "Trying again in 0.5 s." in done.stderr
    assert len(server.keys) == 2
    assert server.keys[0] == server.keys[1] is not None


def test_what_might_be_done_twice_is_not_repeated_when_its_connection_is_lost(server: Server) -> None:
    server.answers = lambda path: LOST
    done = borgctl(server, "undo", "cc/ubar/web")
    assert (done.returncode, len(server.asked)) == (1, 1), done.stderr
    assert "cannot reach the portal" in done.stderr


def test_what_might_be_done_twice_is_not_repeated(server: Server) -> None:
    server.answers = _once_away(server, b"{}")
    done = borgctl(server, "undo", "cc/ubar/web")
    assert done.returncode == 1
    assert "Away." in done.stderr
    assert len(server.asked) == 1


def test_a_request_above_the_rate_is_repeated_because_it_was_not_executed(server: Server) -> None:
    body = json.dumps({"code": "too-many-requests", "detail": "Too many."}).encode()
    slower = (429, {"Retry-After": "0"}, body)
    server.answers = lambda path: slower if len(server.asked) == 1 else (200, {}, b'{"killed": 3}')
    done = borgctl(server, "kill", "cc/ubar/web")
    assert "Too many. Trying again in 0 s." in done.stderr
    assert len(server.asked) == 2


def test_a_refusal_for_another_reason_is_not_repeated(server: Server) -> None:
    body = json.dumps({"code": "storage-full", "detail": "Full."}).encode()
    server.answers = lambda path: (503, {"Retry-After": "0"}, body)
    assert borgctl(server, "cells").returncode == 1
    assert len(server.asked) == 1
