"""A pytest plugin: one real PostgreSQL and Redis for the whole run, in a folder that goes away with it.

Load it with `-p tests.engines`. It must win against pytest-django, which reads Django's settings, and with
them the database's address, while the command line is still being read. Workers of pytest-xdist inherit
the addresses through the environment and start nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from portal.up import engines

_READY_S = 30.0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        cleanup = ExitStack()
        early_config.add_cleanup(cleanup.close)
        _start(cleanup)
    return (yield)


def _start(cleanup: ExitStack) -> None:
    home = Path(tempfile.mkdtemp(prefix="borg-tests-"))
    home.chmod(0o711)  # under root the engines run as somebody else
    cleanup.callback(shutil.rmtree, home)
    log = cleanup.enter_context((home / "engines.log").open("ab"))
    postgres = engines.start_postgres(home, durable=False, output=log.fileno())
    cleanup.callback(postgres.stop)
    redis = engines.start_redis(home, durable=False, output=log.fileno())
    cleanup.callback(redis.stop)
    postgres.wait_ready(_READY_S)
    redis.wait_ready(_READY_S)
    os.environ["BORG_HOME"] = str(home)
    os.environ["BORG_DATABASE_URL"] = postgres.url
    os.environ["BORG_REDIS_URL"] = redis.url
