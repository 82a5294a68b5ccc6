"""`make backup` and `make restore`: save the portal's data folder (BORG_HOME) in one tar file, and create BORG_HOME
from such a file.

    python -m portal.up.backup save [FILE]      save BORG_HOME; the portal may be running
    python -m portal.up.backup restore FILE     create BORG_HOME, which must not exist yet

A backup contains a consistent dump of the database, the generated secrets, the TLS authority, the stored packages, the
archive and the identities of this host's machines. It does not contain `secret-keys`, the keys that encrypt the secrets
of tenants: back this file up in another place. It contains neither tasks nor the data of Redis, which is only a
cache. It begins with a manifest, which lists the size and the SHA-256 sum of each file. `restore` first checks all
files against the manifest. A restored cell gets a new history number. So a Borglet does not kill tasks that the backup
does not contain. The cell lists these tasks as quarantined.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from portal.up import engines
from portal.up.environment import environment
from portal.up.home import LAYOUT, Home, HomeError
from portal.up.options import OptionError, Options
from portal.up.supervision import children
from portal.up.supervision.account import AccountError

FORMAT = 1
_DUMP = "database.dump"
_MANIFEST = "manifest.json"
_FILES = ("secrets.json", "client.toml", "layout")
_TREES = ("authority", "packages", "archive")
_DRAFTS = ".drafts"  # unfinished files of packages and of the archive
# From these folders, a backup contains only the files at the top: the identity of the machine. Tasks are below.
_MACHINE_FOLDERS = ("borglet", "fleet", "fleet-*")
_LARGEST_MACHINE_FILE_BYTES = 2**20
_READY_S = 90.0


class BackupError(RuntimeError):
    """The error if a backup cannot be made or restored. In this case, no file and no BORG_HOME has changed."""


def save(home: Home, file: Path) -> dict[str, Any]:
    """Write a backup of the data folder `home` to `file` (mode 0600), and return the backup's manifest.

    Raises `BackupError` if the data folder does not exist, if `file` exists, or if the dump fails.
    """
    if not (home.path / "layout").exists() or not (home.path / "postgres" / "PG_VERSION").exists():
        raise BackupError(
            f"BORG_HOME={home.path} contains no data to save; set BORG_HOME to the folder with the portal's data"
        )
    if file.exists():
        raise BackupError(f"FILE={file} already exists; choose another FILE")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise BackupError(f"FILE={file}: this user cannot write to the folder {file.parent}; choose another FILE")
    partial = file.with_name(f".{file.name}.partial")
    with tempfile.TemporaryDirectory(prefix="borg-backup-", dir=file.parent) as folder:
        dump = Path(folder) / _DUMP
        with _database(home) as url:
            _postgres_program("pg_dump", "--format=custom", "--no-owner", f"--file={dump}", url)
        sources = {_DUMP: dump, **_sources(home.path)}
        manifest = {
            "format": FORMAT,
            "version": version("borg-portal"),
            "layout": LAYOUT,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": {name: _measure(path) for name, path in sorted(sources.items())},
        }
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w") as tar:
                _add(tar, _MANIFEST, io.BytesIO(json.dumps(manifest, indent=2).encode()))
                for name, path in sources.items():
                    with path.open("rb") as content:
                        _add(tar, name, content)
                raw.flush()
                os.fsync(raw.fileno())
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
    return manifest


def restore(options: Options, file: Path) -> dict[str, Any]:
    """Create the data folder (BORG_HOME) from a backup, and return its manifest. After a failure, no folder is left.

    Raises `BackupError` if the file is damaged or of a newer version, or if BORG_HOME exists.
    """
    home = Home(options.home)
    if home.path.exists() and any(home.path.iterdir()):
        raise BackupError(
            f"BORG_HOME={home.path} exists and is not empty, and a backup can be restored only into an empty folder."
            " Stop the processes that use this folder, move the folder away"
            f" (mv {home.path} {home.path}.old), and try again."
        )
    if not file.is_file():
        raise BackupError(f"FILE={file} does not exist; give the path of a backup")
    home.path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Home(home.path.with_name(f"{home.path.name}.restoring"))
    if fresh.path.exists():  # left by a restore that was killed
        shutil.rmtree(fresh.path)
    try:
        fresh.path.mkdir(mode=0o711)
        manifest = _unpack(file, fresh.path)
        fresh.prepare()
        _load(options, fresh)
        if home.path.exists():
            home.path.rmdir()
        fresh.path.rename(home.path)
    finally:
        if fresh.path.exists():
            shutil.rmtree(fresh.path)
    return manifest


def _load(options: Options, home: Home) -> None:
    """Load the dump into a new PostgreSQL, migrate the database to this version, and give each cell a new history."""
    dump = home.path / _DUMP
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((home.log / "restore.log").open("ab"))
        postgres = engines.start(engines.prepare_postgres(home.path), output=log.fileno())
        stack.callback(postgres.stop)
        redis = engines.start(engines.prepare_redis(home.path), output=log.fileno())
        stack.callback(redis.stop)
        postgres.wait_ready(_READY_S)
        redis.wait_ready(_READY_S)
        _postgres_program("pg_restore", "--exit-on-error", "--no-owner", f"--dbname={postgres.url}", str(dump))
        key = home.secrets_read()["secret_key"]
        env = environment(options, os.environ, database_url=postgres.url, redis_url=redis.url, secret_key=key)
        here = {"BORG_HOME": str(home.path), "BORG_AUTHORITY": str(home.path / "authority")}
        env = {**env, **here, "PROMETHEUS_MULTIPROC_DIR": ""}  # no process reads the metrics of these commands
        for command in ("migrate", "new_history"):
            engines.run_program([sys.executable, "-m", "django", command], env=env)
    dump.unlink()


@contextlib.contextmanager
def _database(home: Home) -> Iterator[str]:
    """Yield the URL of the PostgreSQL server whose data is in `home`. If this server does not run, start it, and stop
    it at the end of the `with` block.
    """
    if children.record_find(home.run / "postgres.pid") is not None:
        sockets = (home.path / "postgres" / "postmaster.pid").read_text().splitlines()[4]
        yield f"postgresql:///{engines.DATABASE}?host={sockets}&user=postgres"
        return
    with home.lock(), (home.log / "backup.log").open("ab") as log:
        engine = engines.start(engines.prepare_postgres(home.path), output=log.fileno())
        try:
            engine.wait_ready(_READY_S)
            yield engine.url
        finally:
            engine.stop()


def _sources(home: Path) -> dict[str, Path]:
    """Return the files that a backup contains in addition to the database, as paths by their names in the backup."""
    found = [home / name for name in _FILES]
    for tree in _TREES:
        found += sorted((home / tree).rglob("*"))
    of_machines = [path for folder in _MACHINE_FOLDERS for path in sorted(home.glob(f"{folder}/*"))]
    found += [path for path in of_machines if path.lstat().st_size <= _LARGEST_MACHINE_FILE_BYTES]
    kept = [path for path in found if path.is_file() and not path.is_symlink() and path.parent.name != _DRAFTS]
    return {path.relative_to(home).as_posix(): path for path in kept}


def _unpack(file: Path, folder: Path) -> dict[str, Any]:
    """Check the backup, write its files into `folder`, and return its manifest.

    Rejects a backup with a file that is not in the manifest. Only the owner can read the written files.
    """
    try:
        with tarfile.open(file, mode="r:") as tar:
            members = iter(tar)
            first = next(members, None)
            opened = tar.extractfile(first) if first is not None and first.name == _MANIFEST else None
            if opened is None:
                raise BackupError(f"{file} is not a backup: it does not begin with a manifest; give another FILE")
            manifest: dict[str, Any] = json.loads(opened.read())
            if manifest["format"] > FORMAT or manifest["layout"] > LAYOUT:
                raise BackupError(
                    f"{file} was made by version {manifest['version']}, which is newer than this one "
                    f"({version('borg-portal')}); restore it with that version"
                )
            missing = dict(manifest["files"])
            for member in members:
                expected = missing.pop(member.name, None)
                content = tar.extractfile(member) if member.isreg() else None
                if expected is None or content is None or not _plain(member.name):
                    raise BackupError(
                        f"{file} contains {member.name!r}, which is not in its manifest; use another backup"
                    )
                _extract(file, member.name, content, folder / member.name, expected)
    except (tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise BackupError(f"{file} is damaged: {error}; use another backup") from error
    if missing:
        raise BackupError(f"{file} is damaged: {min(missing)} is missing; use another backup")
    if _DUMP not in manifest["files"]:
        raise BackupError(f"{file} is a backup without a database; use another backup")
    return manifest


def _extract(file: Path, name: str, content: Any, target: Path, expected: dict[str, Any]) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        shutil.copyfileobj(content, out, 2**20)
    if _measure(target) != expected:
        raise BackupError(f"{file} is damaged: the checksum of {name} is wrong; use another backup")


def _plain(name: str) -> bool:
    """Return whether `name` is a relative path that does not lead out of its folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.as_posix() == name


def _measure(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _add(tar: tarfile.TarFile, name: str, content: Any) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = content.seek(0, os.SEEK_END)
    content.seek(0)
    entry.mode = 0o600
    tar.addfile(entry, content)


def _postgres_program(name: str, *arguments: str) -> None:
    env = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
    engines.run_program([str(engines.postgres_binaries() / name), *arguments], env=env)


def main(argv: list[str]) -> int:
    """Run `save` or `restore`. Return the exit status."""
    try:
        options = Options.read(os.environ)
        match argv:
            case ["save", *rest] if len(rest) <= 1:
                stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
                file = Path(rest[0] if rest else f"borg-{stamp}.tar").resolve()
                manifest = save(Home(options.home), file)
                print(f"Saved {options.home} in {file}: {len(manifest['files'])} files. Keep it private.")
            case ["restore", name]:
                manifest = restore(options, Path(name).resolve())
                print(f"Restored the backup of {manifest['created_at']} to {options.home}; `make up` starts it.")
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (BackupError, HomeError, AccountError, OptionError, engines.EngineError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:  # such as a full disk or a folder without permission
        print(f"{error.strerror}: {error.filename or argv[-1]}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted. No file and no home has changed.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
