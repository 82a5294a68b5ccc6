"""Tests of the socket for locks in tasks with real processes, also in containers: requests, restarts and ends."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from typing import Any

import msgspec
import pytest

from borglet.locks import doors
from borglet.locks.doors import LockDoors
from borglet.locks.http_requests import MAX_BODY_BYTES
from borglet.locks.keeper import LockKeeper
from borglet.messages import LockAnswer, LockCall, LocksRenewed, RenewLocks, RunSession, RunTask, TaskRun
from borglet.runtimes.base import secret_files
from borglet.runtimes.home.taskdirs import directory_name
from tests.real.runtimes.machine import Machine, a_task, end_of, eventually, key, text_of

pytestmark = pytest.mark.skipif(
    not secret_files.in_memory(secret_files.MEMORY), reason="this machine has no file system in memory"
)
RUN = TaskRun(key(), 1)
CLIENT = """
import http.client, json, os, socket, sys
connection = http.client.HTTPConnection("borglet")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(os.environ["BORG_LOCKS"])
for method, path, body in json.loads(sys.argv[1]):
    connection.request(method, path, body)
    answer = connection.getresponse()
    print(answer.status, answer.read().decode().strip(), flush=True)
"""


class Shard:
    """The other end of the link: it answers each message at once, and says that it did what was asked."""

    def __init__(self) -> None:
        self.keeper = LockKeeper()
        self.doors = LockDoors(self.keeper)
        self.calls: list[LockCall] = []
        self.ended: list[TaskRun] = []
        self.prompt = True  # whether it answers calls at once
        self.held: list[LockCall] = []
        self.keeper.connected(self.send)

    def send(self, message: msgspec.Struct) -> None:
        asyncio.get_running_loop().call_soon(self._answer, message)

    def _answer(self, message: msgspec.Struct) -> None:
        if isinstance(message, RenewLocks):
            self.ended += message.ended
            live = [RunSession(run, "s1") for run in {call.run for call in self.calls} - set(self.ended)]
            self.keeper.take(LocksRenewed(message.number, 15.0, live))
        elif isinstance(message, LockCall) and not self.prompt:
            self.held.append(message)
        elif isinstance(message, LockCall):
            self.calls.append(message)
            holds = message.target == "/v1/acquire" or None
            body = json.dumps({"name": "shop", "token": 7, "again": False})
            self.keeper.take(LockAnswer(message.number, 200, body, holds, "s1", 0.0, 15.0))


def asking(*requests: tuple[str, str, str | None]) -> RunTask:
    """Return a task that sends requests to its socket, and prints the answers."""
    task = a_task("python3", "-c", CLIENT, json.dumps(requests))
    return msgspec.structs.replace(task, locks=["shop"])


async def test_a_task_reaches_the_cell_through_its_socket(machine: Machine) -> None:
    shard = Shard()
    async with machine.runtime() as runtime:
        runtime.serve_doors(shard.doors)
        acquire = json.dumps({"name": "shop"})
        await runtime.start(
            asking(("POST", "/v1/acquire", acquire), ("GET", "/v1/session", None), ("GET", "/v1/locks/shop", None)),
            run=1,
        )
        await end_of(runtime)
        lines = (await text_of(runtime)).splitlines()
        assert [line.split()[0] for line in lines] == ["200", "200", "200"]
        session: dict[str, Any] = json.loads(lines[1].partition(" ")[2])
        assert session["holds"]
        assert 13 < session["left_s"] < 15
        assert [(call.run, call.method, call.target) for call in shard.calls] == [
            (RUN, "POST", "/v1/acquire"),
            (RUN, "GET", "/v1/locks/shop"),
        ]
        await eventually(lambda: shard.ended == [RUN], "the session to end with the run")
        assert not (machine.home / "secrets" / directory_name(key())).exists()
    await shard.keeper.close()


async def test_a_new_borglet_opens_the_socket_again(machine: Machine) -> None:
    folder = machine.home / "secrets" / directory_name(key())
    first = Shard()
    async with machine.runtime() as runtime:
        runtime.serve_doors(first.doors)
        await runtime.start(msgspec.structs.replace(a_task("sleep", "60"), locks=["shop"]), run=1)
        about = (folder / secret_files.LOCK_SOCKET).stat()
        assert stat.S_ISSOCK(about.st_mode)
        assert stat.S_IMODE(about.st_mode) == 0o600
        assert about.st_uid == folder.stat().st_uid
        assert stat.S_IMODE(folder.stat().st_mode) in (0o500, 0o700)
        first.doors.stop()
    second = Shard()
    runtime = machine.open()
    try:
        runtime.serve_doors(second.doors)
        await runtime.presences()
        answer = await talk(str(folder.resolve() / secret_files.LOCK_SOCKET), b"GET /v1/session HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert second.ended == first.ended == []
    finally:
        second.doors.stop()
        await runtime.close()
    for shard in (first, second):
        await shard.keeper.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"POST /v1/acquire HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /v1/acquire HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"POST /v1/acquire HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /v1/acquire HTTP/1.1\r\nContent-Length: 2\r\n\r\n\xff\xff", 400),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /v1/session?wait_s=61 HTTP/1.1\r\nConnection: close\r\n\r\n", 422),
    ],
)
async def test_requests_that_are_not_http_get_an_error(request_: bytes, status: int) -> None:
    shard = Shard()
    path = f"/tmp/borg-locks-{os.getpid()}.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.setblocking(False)
    try:
        await shard.doors.open(RUN, listener)
        answer = await talk(path, request_)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        document = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert document["status"] == status
        assert ";" in document["detail"]
    finally:
        shard.doors.stop()
        os.unlink(path)
        await shard.keeper.close()


async def test_a_lock_is_released_if_the_client_left_before_the_answer() -> None:
    shard = Shard()
    shard.prompt = False
    path = f"/tmp/borg-locks-{os.getpid()}.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.setblocking(False)
    try:
        await shard.doors.open(RUN, listener)
        _, writer = await asyncio.open_unix_connection(path)
        body = b'{"name": "shop"}'
        writer.write(b"POST /v1/acquire HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await eventually(lambda: bool(shard.held), "the request to arrive")
        writer.close()
        await writer.wait_closed()
        shard.prompt = True
        shard.send(shard.held[0])
        await eventually(lambda: [call.target for call in shard.calls] == ["/v1/acquire", "/v1/release"], "a release")
    finally:
        shard.doors.stop()
        os.unlink(path)
        await shard.keeper.close()


async def test_a_release_for_a_client_that_left_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is away: nobody knows whether the lock was acquired, and the first release fails too."""
    monkeypatch.setattr(doors, "RELEASE_AGAIN_S", 0.01)
    shard = Shard()
    shard.prompt = False
    path = f"/tmp/borg-locks-{os.getpid()}.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.setblocking(False)
    try:
        await shard.doors.open(RUN, listener)
        _, writer = await asyncio.open_unix_connection(path)
        body = b'{"name": "shop"}'
        writer.write(b"POST /v1/acquire HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await eventually(lambda: len(shard.held) == 1, "the request to arrive")
        writer.close()
        await writer.wait_closed()
        for number in (0, 1):
            await eventually(lambda: len(shard.held) == number + 1, "the next request")  # noqa: B023
            shard.keeper.take(LockAnswer(shard.held[number].number, 503, "{}"))
        await eventually(lambda: len(shard.held) == 3, "a second release")
        assert [call.target for call in shard.held] == ["/v1/acquire", "/v1/release", "/v1/release"]
        shard.keeper.take(LockAnswer(shard.held[2].number, 409, "{}"))
        await asyncio.sleep(0.05)
        assert len(shard.held) == 3, "the cell has answered that the task does not hold it"
    finally:
        shard.doors.stop()
        os.unlink(path)
        await shard.keeper.close()


async def test_a_lock_is_not_released_if_another_request_of_the_task_has_it() -> None:
    """The client of the first request has left, and has repeated it on a new connection."""
    shard = Shard()
    shard.prompt = False
    path = f"/tmp/borg-locks-{os.getpid()}.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.setblocking(False)
    body = b'{"name": "shop"}'
    request = b"POST /v1/acquire HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    try:
        await shard.doors.open(RUN, listener)
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(request)
        await eventually(lambda: len(shard.held) == 1, "the first request")
        writer.close()
        await writer.wait_closed()
        second = asyncio.ensure_future(talk(path, request))
        await eventually(lambda: len(shard.held) == 2, "the second request")
        shard.prompt = True
        for call in shard.held:
            shard.send(call)
        assert (await second).startswith(b"HTTP/1.1 200 ")
        assert [call.target for call in shard.calls] == ["/v1/acquire", "/v1/acquire"]
        assert (await shard.keeper.session(RUN, 0.0))["holds"]
    finally:
        shard.doors.stop()
        os.unlink(path)
        await shard.keeper.close()


async def talk(path: str, request: bytes) -> bytes:
    """Send bytes to a socket, and return the answer that arrives until the server closes the connection, or pauses."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(next(line for line in head.split(b"\r\n") if line.startswith(b"content-length")).split()[1])
        body = await reader.readexactly(size)
    writer.close()
    return head + body
