"""Clients that submit, update and kill jobs and buy quota through HAProxy, and record what was acknowledged."""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.ha.cell import CELL, TENANT
from tests.ha.history import Action, History, Outcome, Request

# A client repeats a request that got no answer for this time.
GIVE_UP_S = 60.0
_TIMEOUT = httpx.Timeout(10.0, connect=3.0)
_PAUSE_S, _RETRY_S = 1.0, 0.5
_MOST_JOBS, _MOST_TASKS, _MOST_TRIES = 3, 3, 5
# A task leaves a sign of life each second, in a file of its incarnation; the file `.first` tells when it began.
_TASK = """
file="$1/$BORG_JOB.$BORG_INDEX.$BORG_INCARNATION"
[ -e "$file.first" ] || echo > "$file.first"
while :; do echo >> "$file"; sleep 1; done
"""


@dataclass
class Answer:
    outcome: Outcome
    attempts: int
    body: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""


class Caller:
    """A client of the REST API that repeats requests until they are answered."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=_TIMEOUT, trust_env=False
        )

    def call(self, method: str, path: str, *, give_up_s: float = GIVE_UP_S, **given: Any) -> Answer:
        """Send a request, which must be safe to repeat. Return its answer, or UNKNOWN if there is none in time."""
        end, attempts, problem = time.monotonic() + give_up_s, 0, ""
        while attempts == 0 or time.monotonic() < end:
            attempts += 1
            try:
                answer = self._http.request(method, path, **given)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if answer.is_success:
                    return Answer(Outcome.ACKNOWLEDGED, attempts, answer.json() if answer.content else {})
                problem = f"{answer.status_code} {answer.text[:300]}"
                if answer.status_code < 500 and answer.status_code != 429:
                    return Answer(Outcome.REJECTED, attempts, detail=problem)
            time.sleep(min(_RETRY_S, give_up_s))
        return Answer(Outcome.UNKNOWN, attempts, detail=problem)


class Client:
    """One client with jobs of its own. It never uses a name twice, and leaves a job alone after an unknown outcome."""

    def __init__(self, number: int, caller: Caller, history: History, alive: Path, rng: random.Random) -> None:
        self._number, self._caller, self._history = number, caller, history
        self._alive, self._rng = alive, rng
        self._jobs: dict[str, int] = {}
        self._made = 0

    def act(self) -> Request:
        """Send one random request, and record it."""
        if not self._jobs:
            action = Action.SUBMIT
        else:
            full = len(self._jobs) >= _MOST_JOBS
            action = self._rng.choice([Action.UPDATE, Action.KILL, Action.BUY, Action.KILL if full else Action.SUBMIT])
        request = self._buy() if action == Action.BUY else self._job_request(action)
        self._history.append(request)
        return request

    def _job_request(self, action: Action) -> Request:
        name = self._next_name("job") if action == Action.SUBMIT else self._rng.choice(sorted(self._jobs))
        tasks = 0 if action == Action.KILL else self._rng.randint(1, _MOST_TASKS)
        jobs = f"/api/v1/cells/{CELL}/jobs/"
        began = time.time()
        if action == Action.SUBMIT:
            answer = self._caller.call("POST", jobs, json=self._file(name, tasks), headers={"Idempotency-Key": name})
        elif action == Action.UPDATE:
            answer = self._update(f"{jobs}{TENANT}/{name}/", self._file(name, tasks))
        else:
            confirm = {"confirm": self._jobs[name]}
            answer = self._caller.call("DELETE", f"{jobs}{TENANT}/{name}/", params=confirm)
        if answer.outcome == Outcome.UNKNOWN or (action == Action.KILL and answer.outcome == Outcome.ACKNOWLEDGED):
            self._jobs.pop(name, None)
        elif answer.outcome == Outcome.ACKNOWLEDGED:
            self._jobs[name] = tasks
        job = answer.body.get("job") or {}
        return self._request(
            action, name, began, answer, tasks=tasks, uid=job.get("uid", ""), version=answer.body.get("version", 0)
        )

    def _update(self, path: str, file: dict[str, Any]) -> Answer:
        """Update a job only if it is as this client has read it. Otherwise, an attempt whose answer was lost could run
        after a later request, and submit a killed job again.
        """
        for _ in range(_MOST_TRIES):
            read = self._caller.call("GET", path)
            if read.outcome != Outcome.ACKNOWLEDGED:
                return Answer(Outcome.UNKNOWN, read.attempts, detail=read.detail)
            if read.body["labels"] == file["labels"]:  # by an attempt whose answer was lost
                return Answer(read.outcome, read.attempts, {"job": read.body, "version": read.body["spec_version"]})
            revision = {"If-Match": f'"{read.body["job_revision"]}"'}
            answer = self._caller.call("PUT", path, json=file, headers=revision)
            if not answer.detail.startswith("412"):
                return answer
        return Answer(Outcome.UNKNOWN, _MOST_TRIES, detail=answer.detail)

    def _buy(self) -> Request:
        key, began = self._next_name("order"), time.time()
        until = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(days=self._rng.randint(1, 30))
        body = {
            "tenant": TENANT,
            "cell": CELL,
            "band": "production",
            "amounts": {"cpu": "20m"},
            "ends_at": until.isoformat(),
            "key": key,
        }
        answer = self._caller.call("POST", "/api/v1/quota/orders/", json=body)
        return self._request(Action.BUY, key, began, answer, order=answer.body.get("id", 0))

    def _request(self, action: Action, name: str, began: float, answer: Answer, **fields: Any) -> Request:
        return Request(
            client=self._number,
            action=action,
            name=name,
            began=began,
            ended=time.time(),
            outcome=answer.outcome,
            attempts=answer.attempts,
            detail=answer.detail,
            **fields,
        )

    def _file(self, name: str, tasks: int) -> dict[str, Any]:
        """Return a job file. A label changes with each request, so that each update changes the spec. In every other
        file a variable changes too, so that the update restarts the tasks.
        """
        change = str(self._rng.getrandbits(40))
        return {
            "name": name,
            "tenant": TENANT,
            "tasks": tasks,
            "labels": {"change": change},
            # Two schedulers make plans at the same time: one for services, and one for batch jobs.
            "appclass": "batch" if int(name.rpartition("-")[2]) % 2 else "latency-sensitive",
            "names": {"leave_s": 0},
            "task": {
                "ports": ["main"],
                "command": ["sh", "-c", _TASK, "task", str(self._alive)],
                "env": {"CHANGE": change} if self._rng.random() < 0.5 else {},
                "limit": {"cpu": "100m", "ram": "64Mi", "disk": "16Mi"},
            },
        }

    def _next_name(self, what: str) -> str:
        self._made += 1
        return f"{what}-{self._number}-{self._made}"


class Workload:
    """Some clients, each in a thread, from `__enter__` to `__exit__`."""

    def __init__(self, url: str, token: str, history: History, alive: Path, *, clients: int, seed: int) -> None:
        self._done = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(Client(number, Caller(url, token), history, alive, random.Random(seed * 1000 + number)),),
                name=f"client {number}",
                daemon=True,
            )
            for number in range(clients)
        ]

    def __enter__(self) -> Workload:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(GIVE_UP_S + 15.0)

    def _run(self, client: Client) -> None:
        while not self._done.wait(_PAUSE_S):
            client.act()
