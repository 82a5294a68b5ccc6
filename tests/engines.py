"""A pytest plugin: one real PostgreSQL and Redis for the whole run, in a folder that goes away with it.

Load it with `-p tests.engines`. It must win against pytest-django, which reads Django's settings, and with
them the database's address, while the command line is still being read. Workers of pytest-xdist inherit
PostgreSQL's address through the environment, and have databases of their own there. Redis has channels for all, so
that link shards of two workers would take each other for one: each worker starts one of its own.
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
from tests.migrated import copy_postgres

pytest_plugins = ("tests.emptying",)
_READY_S = 30.0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    cleanup = ExitStack()
    early_config.add_cleanup(cleanup.close)
    _start(cleanup, all_of_them="PYTEST_XDIST_WORKER" not in os.environ)
    return (yield)


def _start(cleanup: ExitStack, *, all_of_them: bool) -> None:
    home = Path(tempfile.mkdtemp(prefix="borg-tests-"))
    home.chmod(0o711)  # under root the engines run as somebody else
    cleanup.callback(shutil.rmtree, home)
    log = cleanup.enter_context((home / "engines.log").open("ab"))
    redis = engines.start(engines.prepare_redis(home, durable=False), output=log.fileno())
    cleanup.callback(redis.stop)
    if all_of_them:
        copy_postgres(home)
        postgres = engines.start(engines.prepare_postgres(home, durable=False), output=log.fileno())
        cleanup.callback(postgres.stop)
        postgres.wait_ready(_READY_S)
        os.environ["BORG_HOME"] = str(home)
        os.environ["BORG_DATABASE_URL"] = postgres.url
    redis.wait_ready(_READY_S)
    os.environ["BORG_REDIS_URL"] = redis.url
