"""A planted secret is in no store, log, event, backup and answer of an installation that runs a job with it."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest

from borglet.runtimes.base import secret_files
from tests.acceptance.installation import Failed, Installation, wait_for
from tests.acceptance.traces import Search

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not secret_files.in_memory(secret_files.MEMORY), reason="needs a file system in memory"),
]
BOUND_S = 90.0
_PROGRAM = (
    'cd "$BORG_SECRETS"; test "`cat password`" = "$PASSWORD" || exit 7;'
    ' while [ "`cat password`" = "$PASSWORD" ]; do sleep 0.1; done; echo changed; exec sleep 3600'
)
_JOB = "/api/v1/cells/dev/jobs/demo/keeper/"
_PATHS = (
    *(_JOB, f"{_JOB}tasks/", f"{_JOB}tasks/0/", f"{_JOB}events/", f"{_JOB}versions/", f"{_JOB}why/"),
    *(f"{_JOB}tasks/0/logs/", "/api/v1/tenants/demo/secrets/", "/api/v1/tenants/demo/secrets/planted/"),
    *("/api/v1/cells/dev/jobs/?tenant=demo", "/api/v1/records/?tenant=demo", "/api/v1/notices/"),
    *("/jobs/dev/demo/keeper/", "/jobs/dev/demo/keeper/0/", "/jobs/dev/demo/keeper/specs/"),
    *("/jobs/dev/demo/keeper/events/", "/tenants/demo/secrets/", "/tenants/demo/secrets/planted/"),
)


def test_a_planted_secret_is_nowhere(own: Installation, tmp_path: Path) -> None:
    own.start()
    first, second = (secrets.token_hex(24) for _ in range(2))
    _set(own, tmp_path, first)
    own.borgctl("secret", "grant", "planted", "keeper", "--tenant", "demo", profile="admin")
    uses = [{"name": "planted", "file": "password"}, {"name": "planted", "env": "PASSWORD"}]
    own.submit("keeper", [], task={"command": ["sh", "-c", _PROGRAM], "secrets": uses})
    wait_for(lambda: own.up("keeper"), BOUND_S, story=lambda: own.borgctl("why", "keeper/0"))
    _set(own, tmp_path, second)
    wait_for(lambda: "changed" in _log(own), BOUND_S, story=lambda: _log(own))
    with pytest.raises(Failed, match="looks like a secret"):
        own.submit("plain", [], task={"command": ["sleep", "9"], "env": {"PASSWORD": first}})
    own.home.with_name("plain.json").unlink()
    own.borgctl("checkpoint", "save", profile="admin")
    own.borgctl("restart", "keeper")
    wait_for(lambda: own.tasks("keeper")[0]["incarnation"] > 1, BOUND_S, story=lambda: own.tasks("keeper"))
    wait_for(lambda: own.up("keeper"), BOUND_S, story=lambda: own.borgctl("why", "keeper/0"))
    memory = secret_files.MEMORY
    assert any(
        first.encode() in file.read_bytes() or second.encode() in file.read_bytes() for file in _below(memory)
    ), "the task has it in memory"
    for value in (first, second):
        assert Search(own, value).everything(paths=_PATHS) == []

    # The search finds a value that somebody wrote where it does not belong.
    own.submit("leak", [], task={"command": ["echo", first]}, labels={"note": "planted"})
    leaks = "/api/v1/cells/dev/jobs/demo/leak/", "/jobs/dev/demo/leak/specs/"
    found = Search(own, first).everything(paths=leaks)
    assert {place.partition(" ")[0] for place in found} >= {"table", "file", "answer", "page"}
    own.borgctl("kill", "keeper", "--reason", second)
    wait_for(lambda: "table scheduling_event" in str(list(Search(own, second).rows())), 10.0, story=lambda: "events")


def _set(there: Installation, folder: Path, value: str) -> None:
    file = folder / "value"
    file.write_text(value)
    there.borgctl("secret", "set", "planted", "--file", str(file))
    file.unlink()


def _log(there: Installation) -> str:
    try:
        return str(there.borgctl("logs", "keeper/0"))
    except (Failed, subprocess.TimeoutExpired):
        return ""


def _below(memory: Path) -> list[Path]:
    return [file for file in memory.glob("borg-secrets-*/*/*") if file.is_file()]
