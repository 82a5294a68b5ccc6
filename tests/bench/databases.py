"""PostgreSQL and Redis for a benchmark, with durable commits as in production, and Django's settings for them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from portal.up import engines

_READY_S = 60.0


@contextmanager
def databases(kept: Path | None = None) -> Iterator[Path]:
    """Run PostgreSQL and Redis during the `with` block, and yield the folder with their data.

    Their addresses are set in the environment of this process, which its children inherit. Without `kept`, the folder
    is temporary. The folder `kept` is created if it is missing, and is not deleted.
    """
    home = kept or Path(tempfile.mkdtemp(prefix="borg-bench-"))
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o711)  # if this process is root, the servers run as other users
    with (home / "engines.log").open("ab") as log:
        postgres = engines.start(engines.prepare_postgres(home), output=log.fileno())
        redis = engines.start(engines.prepare_redis(home), output=log.fileno())
        try:
            postgres.wait_ready(_READY_S)
            redis.wait_ready(_READY_S)
            os.environ |= {
                "BORG_HOME": str(home),
                "BORG_DATABASE_URL": postgres.url,
                "BORG_REDIS_URL": redis.url,
                "BORG_LOG_LEVEL": "WARNING",
                "DJANGO_SETTINGS_MODULE": "portal.settings.test",
            }
            yield home
        finally:
            redis.stop()
            postgres.stop()
            if kept is None:
                shutil.rmtree(home, ignore_errors=True)
