"""The heartbeat file of a Celery worker, named by BORG_PULSE. Loaded by `worker --include`.

A worker has no port to probe. It touches the file when it is ready, with each heartbeat to the broker (so that
connection is alive too), and before and after each task.
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
