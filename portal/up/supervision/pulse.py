"""The heartbeat file of a Celery worker, which the variable BORG_PULSE names. `worker --include` loads this module.

A worker has no port to probe. So it touches the file when it is ready, before and after each task, and with each
heartbeat to the broker, which shows that the connection to the broker is alive.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery import signals

_FILE = os.environ.get("BORG_PULSE")


def pulse(**_: object) -> None:
    """Touch the heartbeat file, if this process has one."""
    if _FILE:
        Path(_FILE).touch(mode=0o600)


for _signal in (signals.worker_ready, signals.heartbeat_sent, signals.task_prerun, signals.task_postrun):
    _signal.connect(pulse, weak=False)
