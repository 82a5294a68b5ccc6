"""A pytest plugin that starts one PostgreSQL and one Redis for the whole run, in a temporary folder.

Load it with `-p tests.engines`. It runs before pytest-django, which reads Django's settings, and so the database's
address, while pytest still parses the command line. Workers of pytest-xdist get PostgreSQL's address through the
environment, and each has its own database there. Channels of Redis are global, so that link shards of two workers would
mistake each other for themselves. Therefore each worker starts its own Redis.
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
    home.chmod(0o711)  # under root, PostgreSQL and Redis run as another user
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
