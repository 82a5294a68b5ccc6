"""Real masters over the test database: Celery workers in processes of their own, as `portal.up` starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.integration.portal_server import database_url

_WORKER = (
    *(sys.executable, "-m", "celery", "-A", "portal.celery", "worker", "--pool", "solo"),
    *("--without-gossip", "--without-mingle", "--loglevel", "INFO"),
)


@contextmanager
def running(folder: Path, *queues: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start one Celery worker for each queue and yield their processes. They are killed at the end of the block."""
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings.production",
        "BORG_DATABASE_URL": database_url(),
        "BORG_SECRET_KEY": "of-the-tests-" + "x" * 50,
    }
    with ExitStack() as cleanup:
        workers = []
        for queue in queues:
            output = cleanup.enter_context((folder / f"{queue}.log").open("ab"))
            command = [*_WORKER, "--queues", queue, "--hostname", f"{queue}@%h"]
            worker = subprocess.Popen(command, env=env, stdout=output, stderr=output)
            cleanup.callback(worker.wait)
            cleanup.callback(worker.kill)
            workers.append(worker)
        yield workers
