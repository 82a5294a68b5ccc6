"""Copies of a data directory of PostgreSQL whose database `borg` is already migrated.

All migrations take eight seconds of CPU, mostly Django's copies of all models. Each worker of pytest-xdist and each
installation of a test would take them again. The original is kept in `build/migrated` until a migration or a package
changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from portal.up import engines

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "migrated"
_READY_S = 60.0


def copy_postgres(home: Path) -> None:
    """Create the folder `postgres` of a BORG_HOME that has none, with a database that is migrated and empty."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = FOLDER / f"{_stamp()}-{os.geteuid()}"
        if not kept.exists():
            for old in FOLDER.glob(f"*-{os.geteuid()}"):
                shutil.rmtree(old)
            _make(kept)
        _copy(kept, home / "postgres")


def _make(kept: Path) -> None:
    """Start a new PostgreSQL, migrate its database, stop it, and store its data directory as the folder `kept`."""
    with tempfile.TemporaryDirectory(prefix="borg-migrated-") as folder:
        home = Path(folder)
        home.chmod(0o711)  # under root the engines run as another user
        postgres = engines.start(engines.prepare_postgres(home, durable=False), output=subprocess.DEVNULL)
        try:
            postgres.wait_ready(_READY_S)
            settings = {"DJANGO_SETTINGS_MODULE": "portal.settings.test", "BORG_HOME": folder}
            subprocess.run(
                [sys.executable, str(ROOT / "manage.py"), "migrate", "--verbosity=0"],
                env={**os.environ, **settings, "BORG_DATABASE_URL": postgres.url},
                check=True,
            )
        finally:
            postgres.stop()
        unfinished = kept.with_name("unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        _copy(home / "postgres", unfinished)
        unfinished.rename(kept)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with the owners of its files."""
    subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(target)], check=True)


def _stamp() -> str:
    """Return a digest of what the migrated database depends on: the migrations, and the versions of all packages."""
    files = [*sorted(ROOT.glob("*/migrations/*.py")), ROOT / "requirements.lock"]
    return hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()[:16]
