"""Reads metrics that tasks serve over HTTP, for all jobs that scale by a metric.

A process of a master asks the tasks itself, at the addresses that clients use too. Each task has a second for its
answer. What does not answer counts as unmeasured. Redirects are not followed, and long answers are cut.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

from scheduling.autoscaling.rules.horizontal_rules import Load
from scheduling.autoscaling.rules.metric_text import metric_value
from scheduling.journal.sql import query
from scheduling.spec.autoscaling.fields import MEAN, MOST, TaskMetric

TIMEOUT_S, TURN_S = 1.0, 4.0
MOST_BYTES = 256 * 2**10
# Tasks of a job that are asked at most. The others are taken to be like these.
MOST_TASKS = 50
_THREADS = 16
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:\s*(\d{1,12})\s*(?:\r\n|$)")
_TASKS = """
SELECT t.job_id, coalesce(nullif(t.address, ''), host(m.address)), t.ports[array_position(j.port_names, p.name)],
  count(*) OVER (PARTITION BY t.job_id)
FROM unnest(%s::bigint[], %s::text[]) AS p(job_id, name)
JOIN scheduling_job AS j ON j.id = p.job_id
JOIN LATERAL (SELECT *, row_number() OVER (ORDER BY t."index") AS place FROM scheduling_task AS t
              WHERE t.job_id = j.id AND t.state = 'running' AND t.up) AS t ON true
JOIN scheduling_machine AS m ON m.id = t.machine_id
"""


class _Place(NamedTuple):
    job_id: int
    host: str
    port: int


def metrics_read(asked: Mapping[int, TaskMetric]) -> dict[int, Load]:
    """Return the loads of jobs by their metrics, by job id. Jobs without an answer are left out. Takes at most `TURN_S`
    seconds, and makes one query.
    """
    rows = query(_TASKS, [list(asked), [metric.port for metric in asked.values()]])
    running = {job_id: number for job_id, *_, number in rows}
    places: dict[int, list[_Place]] = {}
    for job_id, host, port, _ in rows:
        of_job = places.setdefault(job_id, [])
        if host and port and len(of_job) < MOST_TASKS:
            of_job.append(_Place(job_id, host, port))
    values = _values_read([place for of_job in places.values() for place in of_job], asked)
    return {
        job_id: load
        for job_id, metric in asked.items()
        if (load := load_of(values.get(job_id, ()), running.get(job_id, 0), metric)) is not None
    }


def load_of(values: Sequence[float], running: int, metric: TaskMetric) -> Load | None:
    """Return the load of a job from the values of its measured tasks, or None without a value. `running`: how many
    tasks run.
    """
    if not values:
        return None
    if metric.over == MOST:
        return Load(max(0.0, max(values)) / metric.target)
    mean = max(0.0, sum(values) / len(values))
    asked = min(running, MOST_TASKS)
    unmeasured = round(running * max(0, asked - len(values)) / max(1, asked))
    if metric.over == MEAN:
        return Load(mean / metric.target * (running - unmeasured), unmeasured)
    return Load(mean * (running - unmeasured) / metric.target, unmeasured)


def _values_read(places: Sequence[_Place], asked: Mapping[int, TaskMetric]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    ends = time.monotonic() + TURN_S
    pool = ThreadPoolExecutor(min(_THREADS, max(1, len(places))), "metrics")
    try:
        futures = {pool.submit(_value_read, place, asked[place.job_id], ends): place for place in places}
        for future in wait(futures, timeout=TURN_S).done:
            value = future.result()
            if value is not None:
                found.setdefault(futures[future].job_id, []).append(value)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return found


def _value_read(place: _Place, metric: TaskMetric, ends: float) -> float | None:
    """Return the value of one task, or None if it does not answer in time with this metric."""
    if time.monotonic() >= ends:
        return None
    try:
        return metric_value(_fetch(place, metric.path, min(ends, time.monotonic() + TIMEOUT_S)), metric.name)
    except OSError:
        return None


def _fetch(place: _Place, path: str, ends: float) -> str:
    """Return the body of an answer with status 200, or "". The whole request ends at `ends`, also if the task sends its
    answer slowly: libraries bound only the time between two parts of it.
    """
    content = bytearray()
    with socket.create_connection((place.host, place.port), timeout=max(0.01, ends - time.monotonic())) as link:
        # Version 1.0, so that the answer ends when the connection does.
        head = f"GET {path} HTTP/1.0\r\nHost: {place.host}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
        link.sendall(head.encode())
        while len(content) < MOST_BYTES:
            left_s = ends - time.monotonic()
            if left_s <= 0:
                return ""
            link.settimeout(left_s)
            part = link.recv(65_536)
            if not part:
                break
            content += part
            if _is_complete(content):
                break
    header, _, body = bytes(content).partition(b"\r\n\r\n")
    if len(content) >= MOST_BYTES:
        body = body[: body.rfind(b"\n") + 1]  # the last line may be cut in the middle of a number
    return body.decode("utf-8", "replace") if header.split(b" ", 2)[1:2] == [b"200"] else ""


def _is_complete(content: bytearray) -> bool:
    """Return whether an answer has as many bytes as its header says. Some servers keep the connection open."""
    header, separator, body = content.partition(b"\r\n\r\n")
    length = _LENGTH.search(header)
    return bool(separator) and length is not None and len(body) >= int(length[1])
