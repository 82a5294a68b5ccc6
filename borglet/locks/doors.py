"""The socket of each task, at which it requests locks: `curl --unix-socket $BORG_LOCKS http://borg/v1/locks`.

Only the user of the task can open the socket, and each task has its own. So the socket shows which task asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from borglet.locks.http_requests import MAX_HEAD_BYTES, BadRequest, HttpRequest, problem, read_request, response
from borglet.locks.keeper import MOST_WAIT_S, LinkAway, LockKeeper
from borglet.messages import TaskKey, TaskRun

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
# A task that has no socket any more counts with a lease of at most this time.
LONGEST_LEASE_S = 15.0
RELEASE_AGAIN_S = 1.0


@dataclass(slots=True)
class _Door:
    run: TaskRun
    server: asyncio.Server | None = None
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    acquiring: Counter[str] = field(default_factory=Counter)  # open requests to acquire a lock, by its name
    delivered: Counter[str] = field(default_factory=Counter)  # answers that said that the task has the lock
    unclaimed: set[str] = field(default_factory=set)  # locks that the task may hold for a client that has left
    releases: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # of unclaimed locks

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        for task in (*self.connections, *self.releases.values()):
            task.cancel()


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

    def adopt(self, run: TaskRun) -> None:
        """Continue the session of a run that an earlier Borglet started."""
        self._keeper.begin(run)

    def close(self, run: TaskRun) -> None:
        """Close the socket of a run. Its session continues until `ended`."""
        door = self._doors.get(run.key)
        if door is not None and door.run == run:
            self._close(run.key)

    def ended(self, run: TaskRun, *, certain: bool) -> None:
        """End the session of a run. If it is not certain that all its processes have ended, wait until they know that
        their lease has ended: they have no socket any more.
        """
        self._keeper.end(run, after_s=0.0 if certain else LONGEST_LEASE_S)

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
            while await self._serve_one(door, reader, writer):
                pass
        except BadRequest as error:
            writer.write(response(error.status, problem(error.status, "bad-request", str(error)), stays_open=False))
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has left, or the task has ended
        finally:
            door.connections.discard(connection)
            with contextlib.suppress(ConnectionError):
                writer.close()

    async def _serve_one(self, door: _Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Return whether the client may send another one."""
        request = await read_request(reader, writer)
        if request is None:
            return False
        name = _name_in(request, "/v1/acquire")
        if not name:
            status, body, _ = await self._answer(door.run, request)
            await _reply(writer, status, body, stays_open=request.stays_open)
        else:
            await self._acquire(door, name, request, writer)
        return request.stays_open and not writer.is_closing()

    async def _acquire(self, door: _Door, name: str, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        """Answer a request to acquire a lock. If the client has left, release the lock, unless another request of the
        task has got it, or waits for it.
        """
        before = door.delivered[name]
        has_none = self._keeper.has_none(door.run)
        door.acquiring[name] += 1
        status, acquired = 0, None
        try:
            status, body, acquired = await self._answer(door.run, request)
            await _reply(writer, status, body, stays_open=request.stays_open)
        finally:
            door.acquiring[name] -= 1
            if not door.acquiring[name]:
                del door.acquiring[name]
        if acquired is not None and not writer.is_closing():
            door.delivered[name] += 1
            door.unclaimed.discard(name)
        elif acquired or (status >= 500 and writer.is_closing() and has_none):
            door.unclaimed.add(name)  # after an error, the lock may have been acquired
        if door.delivered[name] != before:
            door.unclaimed.discard(name)
        if name in door.unclaimed and name not in door.acquiring and name not in door.releases:
            log.info(
                "task %s closed its connection before it got the answer about lock %s; the Borglet releases the lock",
                door.run.key,
                name,
            )
            release = door.releases[name] = asyncio.get_running_loop().create_task(self._release(door, name))
            release.add_done_callback(lambda _: door.releases.pop(name, None))

    async def _release(self, door: _Door, name: str) -> None:
        """Release a lock for which no client of the task has waited. Repeat this until the cell has done it, or another
        request of the task acquires the lock.
        """
        while name in door.unclaimed and name not in door.acquiring:
            with contextlib.suppress(LinkAway):
                answer = await self._keeper.call(door.run, "POST", "/v1/release", json.dumps({"name": name}))
                if answer.status < 500:
                    door.unclaimed.discard(name)
                    return
            await asyncio.sleep(RELEASE_AGAIN_S)

    async def _answer(self, run: TaskRun, request: HttpRequest) -> tuple[int, str, bool | None]:
        """Return status and body of the answer. The third value is None unless the request has acquired a lock; then it
        says whether the task did not hold it before.
        """
        if request.method == "GET" and urlsplit(request.target).path == "/v1/session":
            return (*await self._session(run, request.target), None)
        try:
            answer = await self._keeper.call(run, request.method, request.target, request.body)
        except LinkAway as error:
            return 503, problem(503, "link-away", str(error), left_s=self._keeper.left_s(run)), None
        if answer.status == 200 and answer.holds and _name_in(request, "/v1/acquire"):
            return 200, answer.body, not json.loads(answer.body).get("again")
        return answer.status, answer.body, None

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


async def _reply(writer: asyncio.StreamWriter, status: int, body: str, *, stays_open: bool) -> None:
    """Send an answer. If the client has left, the writer is closing afterwards."""
    writer.write(response(status, body, stays_open=stays_open))
    with contextlib.suppress(ConnectionError):
        await writer.drain()


def _name_in(request: HttpRequest, path: str) -> str:
    """Return the name of the lock in a POST request to this path; "" for another request."""
    if request.method != "POST" or request.target != path:
        return ""
    try:
        name = json.loads(request.body)["name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return name if isinstance(name, str) else ""
