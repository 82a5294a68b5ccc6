"""A Celery worker shows that it lives: it touches the file BORG_PULSE names. Loaded by `worker --include`.

A worker listens on no port. It touches the file when it is ready, with each heartbeat that it sends (so the
connection to the broker is alive too), and around each task.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery import signals

_FILE = os.environ.get("BORG_PULSE")


def pulse(**_: object) -> None:
    if _FILE:
        Path(_FILE).touch(mode=0o600)


for _signal in (signals.worker_ready, signals.heartbeat_sent, signals.task_prerun, signals.task_postrun):
    _signal.connect(pulse, weak=False)
