"""Real masters over the test database: `python -m scheduling.master` in processes of their own. They are forks of a
process that has imported their code, as the masters that `portal.up` starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.integration import forks
from tests.integration.portal_server import database_url


def environment() -> dict[str, str]:
    """Return the environment of a master in production that uses the test database."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings.production",
        "BORG_DATABASE_URL": database_url(),
        "BORG_SECRET_KEY": "of-the-tests-" + "x" * 50,
    }


@contextmanager
def running(folder: Path, *names: str, **settings: str) -> Iterator[list[subprocess.Popen[bytes]] | list[forks.Fork]]:
    """Start one process for each name (`CELL` or `CELL.batch`) and yield the processes. They are killed at the end of
    the block. `settings`: further environment variables. With these, each process starts from scratch, because the
    process that forks has read its settings already.
    """
    env = environment() | settings
    with ExitStack() as cleanup:
        masters = []
        for name in names:
            output = cleanup.enter_context((folder / f"{name}.log").open("ab"))
            command = [sys.executable, "-m", "scheduling.master", name]
            if settings:
                master = subprocess.Popen(command, env=env, stdout=output, stderr=output)
            else:
                master = forks.fork(command, env=env, output=output.fileno())
            cleanup.callback(master.wait)
            cleanup.callback(master.kill)
            masters.append(master)
        yield masters
