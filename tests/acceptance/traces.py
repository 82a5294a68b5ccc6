"""A search for a text in everything that an installation stores or answers: rows, Redis, files, REST and pages."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psycopg
import redis

from portal.up.engines import DATABASE, socket_path
from tests.acceptance.installation import ROOT, Installation


class Search:
    """A search for `value`, also in hexadecimal and in base64, and with the escapes of JSON."""

    def __init__(self, there: Installation, value: str) -> None:
        self.there = there
        raw = value.encode()
        self._forms = {raw, raw.hex().encode(), json.dumps(value)[1:-1].encode()}
        # Base64 of a text differs with its position in a longer text.
        for shift in range(3):
            coded = base64.b64encode(b"\0" * shift + raw)
            self._forms.add(coded[4 if shift else 0 : -4])

    def everything(self, *, paths: Iterable[str]) -> list[str]:
        """Return all places that contain the value. `paths`: paths of REST and of pages, which are read as the demo
        user and as an SRE.
        """
        backup = self.there.home.with_name("backup.tar")
        self._backup(backup)
        places = [*self.rows(), *self.redis(), *self.files(self.there.home), *self.files(backup), *self.answers(paths)]
        backup.unlink()
        return places

    def rows(self) -> Iterator[str]:
        """Yield the tables with the value in a row. Values of type bytea are read in hexadecimal."""
        url = f"postgresql:///{DATABASE}?host={socket_path(self.there.home)}&user=postgres"
        with psycopg.connect(url) as connection:
            tables = connection.execute(
                "SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
                " WHERE c.relkind = 'r' AND n.nspname = 'public' ORDER BY 1"
            ).fetchall()
            assert len(tables) > 50
            for (table,) in tables:
                rows = connection.execute(f"SELECT t::text FROM {table} AS t").fetchall()
                if any(self._in(text.encode()) for (text,) in rows):
                    yield f"table {table}"

    def redis(self) -> Iterator[str]:
        client = redis.Redis(unix_socket_path=str(socket_path(self.there.home) / "redis.sock"))
        readers = {
            b"string": client.get,
            b"hash": client.hgetall,
            b"list": lambda key: client.lrange(key, 0, -1),
            b"set": client.smembers,
            b"zset": lambda key: client.zrange(key, 0, -1),
            b"stream": client.xrange,
        }
        keys = list(client.scan_iter(count=1000))
        assert keys
        for key in keys:
            content = readers.get(client.type(key), lambda key: b"")(key)
            text = content if isinstance(content, bytes) else repr(content).encode()
            if self._in(key) or self._in(text):
                yield f"Redis {key!r}"
        client.close()

    def files(self, folder: Path) -> Iterator[str]:
        """Yield the files with the value. Links are not followed, because they may lead into memory."""
        walk = os.walk(folder)
        found = [folder] if folder.is_file() else [Path(path, name) for path, _, names in walk for name in names]
        assert found
        for file in found:
            with suppress(OSError):  # a file that a process has just deleted
                if not file.is_symlink() and file.is_file() and self._in(file.read_bytes()):
                    yield f"file {file}"

    def answers(self, paths: Iterable[str]) -> Iterator[str]:
        for profile in ("demo", "admin"):
            with httpx.Client(base_url=self.there.url, timeout=30.0, trust_env=False) as client:
                headers = {"Authorization": f"Bearer {self.there.token(profile)}"}
                for path in (path for path in paths if path.startswith("/api/")):
                    answer = client.get(path, headers=headers)
                    assert answer.status_code in (200, 403), (path, answer.text)
                    if self._in(answer.content):
                        yield f"answer {path} to {profile}"
        with httpx.Client(base_url=self.there.url, timeout=30.0, trust_env=False) as client:
            self._sign_in(client)
            for path in (path for path in paths if not path.startswith("/api/")):
                answer = client.get(path)
                assert answer.status_code == 200, (path, answer.text)
                if self._in(answer.content):
                    yield f"page {path}"
        if self._in(self.there.output().encode()):
            yield "output of make up"

    def _sign_in(self, client: httpx.Client) -> None:
        form = client.get("/accounts/login/")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.text)
        assert token is not None
        password = json.loads((self.there.home / "secrets.json").read_text())["demo"]["password"]
        fields = {"login": "demo", "password": password, "csrfmiddlewaretoken": token[1]}
        answer = client.post("/accounts/login/", data=fields)
        assert answer.status_code == 302, answer.text

    def _backup(self, file: Path) -> None:
        command = [sys.executable, "-m", "portal.up.backup", "save", str(file)]
        subprocess.run(command, cwd=ROOT, env=self.there.environment(), check=True, capture_output=True, timeout=120)

    def _in(self, content: bytes) -> bool:
        return any(form in content for form in self._forms)
