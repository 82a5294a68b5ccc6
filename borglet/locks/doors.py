"""The socket of each task, at which it requests locks: `curl --unix-socket $BORG_LOCKS http://borg/v1/locks`.

Only the user of the task can open the socket, and each task has its own. So the socket shows which task asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from borglet.locks.http_requests import MAX_HEAD_BYTES, BadRequest, HttpRequest, problem, read_request, response
from borglet.locks.keeper import MOST_WAIT_S, LinkAway, LockKeeper
from borglet.messages import TaskKey, TaskRun

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64


@dataclass(slots=True)
class _Door:
    run: TaskRun
    server: asyncio.Server | None = None
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        for connection in list(self.connections):
            connection.cancel()


class LockDoors:
    """The sockets of all tasks of one Borglet."""

    def __init__(self, keeper: LockKeeper) -> None:
        self._keeper = keeper
        self._doors: dict[TaskKey, _Door] = {}

    async def open(self, run: TaskRun, listener: socket.socket) -> None:
        """Answer the requests of a run at `listener`, a socket that is bound already."""
        self._close(run.key)
        door = self._doors[run.key] = _Door(run)
        self._keeper.begin(run)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(door, reader, writer)

        door.server = await asyncio.start_unix_server(serve, sock=listener, limit=MAX_HEAD_BYTES)

    def close(self, run: TaskRun) -> None:
        """End the session of a run that has ended, and close its socket."""
        if run.key in self._doors:
            self._close(run.key)
            self._keeper.end(run)

    def stop(self) -> None:
        """Close all sockets. The runs and their sessions continue."""
        for key in list(self._doors):
            self._close(key)

    def _close(self, key: TaskKey) -> None:
        door = self._doors.pop(key, None)
        if door is not None:
            door.close()

    async def _serve(self, door: _Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        crowded = len(door.connections) >= MOST_CONNECTIONS
        door.connections.add(connection)
        try:
            if crowded:
                detail = f"the task has {MOST_CONNECTIONS} connections to this socket; close one of them"
                writer.write(response(503, problem(503, "too-many-connections", detail), stays_open=False))
                return
            while await self._serve_one(door.run, reader, writer):
                pass
        except BadRequest as error:
            writer.write(response(error.status, problem(error.status, "bad-request", str(error)), stays_open=False))
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has left, or the task has ended
        finally:
            door.connections.discard(connection)
            with contextlib.suppress(ConnectionError):
                writer.close()

    async def _serve_one(self, run: TaskRun, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Return whether the client may send another one."""
        request = await read_request(reader, writer)
        if request is None:
            return False
        status, body, acquired = await self._answer(run, request)
        writer.write(response(status, body, stays_open=request.stays_open))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        if acquired and writer.is_closing():
            # Nobody has the answer, so nobody would release the lock.
            log.info("task %s left before it got lock %s, which is released", run.key, acquired)
            with contextlib.suppress(LinkAway):
                await self._keeper.call(run, "POST", "/v1/release", json.dumps({"name": acquired}))
        return request.stays_open and not writer.is_closing()

    async def _answer(self, run: TaskRun, request: HttpRequest) -> tuple[int, str, str]:
        """Return status and body of the answer, and the name of a lock that the request has newly acquired."""
        if request.method == "GET" and urlsplit(request.target).path == "/v1/session":
            return (*await self._session(run, request.target), "")
        try:
            answer = await self._keeper.call(run, request.method, request.target, request.body)
        except LinkAway as error:
            return 503, problem(503, "link-away", str(error), left_s=self._keeper.left_s(run)), ""
        acquired = ""
        if answer.status == 200 and answer.holds and request.target == "/v1/acquire":
            known = json.loads(answer.body)
            acquired = "" if known.get("again") else str(known["name"])
        return answer.status, answer.body, acquired

    async def _session(self, run: TaskRun, target: str) -> tuple[int, str]:
        given = parse_qs(urlsplit(target).query)
        try:
            wait_s = float(given.get("wait_s", ["0"])[0])
        except ValueError:
            wait_s = -1.0
        if not 0 <= wait_s <= MOST_WAIT_S:
            detail = f"wait_s: it is not a time in seconds; give 0 to {MOST_WAIT_S:g}"
            return 422, problem(422, "invalid", detail, fields={"wait_s": detail})
        try:
            return 200, json.dumps(await self._keeper.session(run, wait_s))
        except LinkAway as error:
            return 503, problem(503, "link-away", str(error))
