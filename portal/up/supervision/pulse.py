"""The heartbeat file of a Celery worker. Its path is in the variable BORG_PULSE. The option `worker --include` loads
this module.

A worker has no port that a check could connect to. So it touches the file when it is ready, before and after each
task, and whenever it sends a heartbeat to the broker.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery import signals

_FILE = os.environ.get("BORG_PULSE")


def pulse(**_: object) -> None:
    """Touch the heartbeat file. Do nothing if this process has no heartbeat file."""
    if _FILE:
        Path(_FILE).touch(mode=0o600)


for _signal in (signals.worker_ready, signals.heartbeat_sent, signals.task_prerun, signals.task_postrun):
    _signal.connect(pulse, weak=False)
