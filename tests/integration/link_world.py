"""Helpers for tests of the link: a link shard with real TLS, and a machine whose messages the test writes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from websockets.asyncio.client import ClientConnection, connect

from borglet.messages import (
    Desired,
    Exit,
    Health,
    Hello,
    JoinRequest,
    Phase,
    Poll,
    Refusal,
    Report,
    TaskKey,
    TaskReport,
    Welcome,
    decode_to_borglet,
    encode,
)
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import split_task_id, task_id
from scheduling.identity import authority
from scheduling.journal import journal
from scheduling.link.server import LinkServer, make_server
from scheduling.machines.joining import join_token_issue
from scheduling.models import Cell, Job, JobSpec, Task
from scheduling.spec import parser
from scheduling.tasks import transitions
from tests.integration import rows

GIB = 2**30
BOUND_S = 30.0  # these waits take at most a second on an idle machine
T = TypeVar("T")


def until(condition: Callable[[], Any], *, seconds: float = BOUND_S, what: str = "") -> Any:
    """Wait until the condition is true, and return its value. The test fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what or condition}")
        time.sleep(0.01)
    return value


@contextlib.contextmanager
def running_link() -> Iterator[Link]:
    server = make_server(host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.run, name="link")
    thread.start()
    try:
        # uvicorn sets `started` before the server has replaced the sockets by its own ones.
        listening = lambda: server.started and any(one.sockets for one in server.servers)  # noqa: E731
        until(lambda: listening() or not thread.is_alive(), what="link started")
        assert server.started
        yield Link(server)
    finally:
        server.should_exit = True
        thread.join(BOUND_S)
        assert not thread.is_alive()


class Link:
    """A running link shard, and the requests that a machine sends to it."""

    def __init__(self, server: LinkServer) -> None:
        self.server = server
        self.port: int = server.servers[0].sockets[0].getsockname()[1]
        self.shard = server.config.loaded_app.shard
        self.context = ssl.create_default_context(cafile=str(authority.ensure_authority()))

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=BOUND_S)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            content = answer.read()
            kind = answer.headers["content-type"]
        finally:
            connection.close()
        return answer.status, json.loads(content) if "json" in kind else content

    def join(self, token: str, hostname: str = "m1", **changed: Any) -> tuple[int, Any]:
        return self.request("POST", "/join", encode(a_join(token, hostname, **changed)))

    def dial(self, hostname: str, secret: str) -> Dialled:
        return Dialled(f"wss://127.0.0.1:{self.port}/link", self.context, f"Bearer {hostname}:{secret}")

    @contextlib.contextmanager
    def machine(self, cell: Cell, hostname: str = "m1", **hello: Any) -> Iterator[Played]:
        """Join the cell with a new machine, connect it to the shard, and yield it after its hello."""
        status, answer = self.join(join_token_issue(principal=rows.ME, cell=cell), hostname)
        assert status == 200, answer
        with self.dial(hostname, answer["secret"]) as socket:
            played = Played(socket, hostname, answer["secret"])
            played.hello(**hello)
            yield played


def a_join(token: str, hostname: str = "m1", **changed: Any) -> JoinRequest:
    facts = {"address": "10.0.0.1", "capacity": {"cpu": 4000, "ram": 8 * GIB, "disk": 50 * GIB}, **changed}
    return JoinRequest(token=token, hostname=hostname, **facts)


class Dialled:
    """A WebSocket connection to a shard, for tests without an event loop.

    One thread reads and writes all messages, because OpenSSL fails if one thread reads a connection while another
    writes. The methods raise the exceptions of `websockets`, and `TimeoutError`.
    """

    def __init__(self, address: str, context: ssl.SSLContext, authorization: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        headers = {"Authorization": authorization}

        async def dial() -> ClientConnection:
            return await connect(address, ssl=context, additional_headers=headers, compression=None, proxy=None)

        try:
            self._connection = self._do(dial())
        except BaseException:
            self._end()
            raise

    def send(self, frame: str | bytes) -> None:
        self._do(self._connection.send(frame))

    def recv(self, timeout: float | None = None) -> str | bytes:
        return self._do(asyncio.wait_for(self._connection.recv(), timeout))

    def __enter__(self) -> Dialled:
        return self

    def __exit__(self, *exc: object) -> None:
        self._do(self._connection.close())
        self._end()

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(60.0)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Played:
    """A machine that is connected to a shard. The test writes its messages, in the place of a Borglet."""

    def __init__(self, socket: Dialled, hostname: str, secret: str) -> None:
        self.socket, self.hostname, self.secret = socket, hostname, secret
        self.session = 0
        self.desired: Desired | None = None

    def hello(self, **changed: Any) -> Welcome | Refusal:
        message = Hello(protocol=1, hostname=self.hostname, boot_id="b1", software="test")
        for name, value in changed.items():
            message = type(message)(**{f: getattr(message, f) for f in message.__struct_fields__} | {name: value})
        self.say(message)
        answer = self.receive()
        if isinstance(answer, Welcome):
            self.session = answer.session
        return answer

    def say(self, message: Any) -> None:
        self.socket.send(encode(message).decode())

    def receive(self, timeout: float = BOUND_S) -> Any:
        return decode_to_borglet(self.socket.recv(timeout))

    def poll(self, timeout: float = BOUND_S) -> Poll:
        answer = self.receive(timeout)
        assert isinstance(answer, Poll), answer
        if answer.desired is not None:
            self.desired = answer.desired
        return answer

    def poll_with_desired(self, having: Callable[[Desired], bool] = lambda desired: True, **changed: Any) -> Poll:
        """Answer polls until the desired state in a poll is one that `having` accepts, and return this poll."""
        deadline = time.monotonic() + BOUND_S
        while time.monotonic() < deadline:
            poll = self.poll()
            if poll.desired is not None and having(poll.desired):
                return poll
            self.report(poll, **changed)
        raise AssertionError("no such desired state")

    tasks: tuple[TaskReport, ...] = ()

    def report(self, poll: Poll, *tasks: TaskReport, **changed: Any) -> None:
        """Answer a poll with a report. `tasks`, if any, replace those of earlier reports. `changed` sets fields."""
        if tasks:
            self.tasks = tasks
        desired = self.desired
        said = {
            "session": self.session,
            "sequence": poll.sequence,
            "history_id": desired.history_id if desired else "",
            "generation": desired.generation if desired else "",
            "revision": desired.revision if desired else 0,
            "tasks": list(self.tasks),
            **changed,
        }
        self.say(Report(**said))

    def has(self, *tasks: TaskReport) -> None:
        """Set the tasks that this machine reports, beginning with the next poll."""
        self.tasks = tasks

    def keep_answering(self, condition: Callable[[], Any]) -> Any:
        """Answer polls until the condition is true, and return its value."""
        deadline = time.monotonic() + BOUND_S
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not within {BOUND_S:g} s"
            with contextlib.suppress(TimeoutError):
                self.report(self.poll(0.05))
        return value


def ran(key: TaskKey, phase: Phase = Phase.UP, *, health: Health = Health.UNKNOWN, **changed: Any) -> TaskReport:
    return TaskReport(key=key, name="cc/ubar/jfoo/0", phase=phase, health=health, **changed)


def exited(key: TaskKey, exit_: Exit, **changed: Any) -> TaskReport:
    return ran(key, Phase.ENDED, exit=exit_, **changed)


def a_job(cell: Cell, name: str = "jfoo", *, tasks: int = 1, leave_s: float = 0, **task: Any) -> Job:
    """Create a submitted job whose tasks are pending.

    `leave_s`: how many seconds before SIGTERM a task that must stop is removed from the answers to name queries.
    """
    job = rows.a_job(cell, rows.a_tenant(), name, tasks=tasks)
    file = {
        "name": name,
        "tasks": tasks,
        "priority": 200,
        "names": {"leave_s": leave_s},
        "task": {"command": ["run", "$(port.http)"], "ports": ["http"], "limit": {"cpu": "100m"}, **task},
    }
    parsed = parser.parse(file)
    JobSpec.objects.update_or_create(
        job=job, version=1, defaults={"spec": parsed.to_json(), "digest": parsed.digest(), "actor": "test"}
    )
    return job


def place(job: Job, machine_id: int, index: int = 0, port: int = 20000) -> TaskKey:
    """Place a pending task of the job on a machine, and return the key of its new incarnation."""

    with journal.write(job.cell_id, rows.ME) as entry:
        identity = task_id(job.id, index)
        assert transitions.tasks_place(entry, [Assignment(*split_task_id(identity), machine_id, ports=(port,))])
    return TaskKey(job.uid.hex, index, Task.objects.get(pk=identity).incarnation)


def task(job: Job, index: int = 0) -> Task:
    return Task.objects.get(job=job, index=index)
