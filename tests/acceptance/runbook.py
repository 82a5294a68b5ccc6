"""The entries of `docs/guides/alarms.md`, and a runner for their commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.installation import ROOT, Failed, Installation

ALARMS = ROOT / "docs" / "guides" / "alarms.md"
COMMAND_S = 120.0
_ANYTHING = "…"
_PROGRAMS = ("borgctl", "manage.py", "systemctl", "journalctl", "sysctl", "ss", "deploy/ha/bin/patronictl")

_DRILLED = ("borg-web", "borg-link", "borg-master@CELL", "borg-resolver")
_KILLED = ("tests/acceptance/test_killed.py", "_PROCESSES")
_SAFETY = ("tests/integration/test_safety_doors.py", '"brake", ')
_DRAINS = ("tests/integration/test_cli.py", '"undrain"')
_ARCHIVE = ("tests/integration/test_archive.py", '"archive"')
_TUTORIAL = ("tests/acceptance/test_tutorial.py", "tutorial.commands()")
_SQL = ("tests/integration/test_sql.py", "ready_queries.queries()")
# Commands in sentences, which need a fault, a unit of systemd or a particular job: the file that runs the same,
# and a text in it. `systemctl restart` does the same as SIGKILL and a new start, with a notice before.
ELSEWHERE = {
    **{f"systemctl restart {unit}": ("tests/ha/runbook.py", f"systemctl restart {unit}") for unit in _DRILLED},
    "systemctl restart borg-worker borg-beat": _KILLED,
    "borgctl brake release lost --reason TEXT": _SAFETY,
    "borgctl brake keep lost --reason TEXT": _SAFETY,
    "borgctl brake release stops --reason TEXT": _SAFETY,
    "borgctl brake keep stops --reason TEXT": _SAFETY,
    "borgctl machine drain HOST --reason TEXT": ("tests/integration/test_safety_doors.py", '"machine", "drain"'),
    "borgctl machine undrain HOST": _DRAINS,
    "borgctl status": _TUTORIAL,
    "borgctl update": _TUTORIAL,
    "borgctl cron list": ("tests/integration/test_cron_processes.py", '"cron", "list"'),
    "borgctl cron suspend NAME": ("tests/integration/test_cron_processes.py", '"cron", "suspend"'),
    "borgctl cron resume NAME": ("tests/integration/test_cron_processes.py", '"cron", "resume"'),
    "borgctl cell set": ("tests/integration/test_cells.py", '"cell", "set"'),
    "borgctl logs TENANT/JOB/0 --stderr": _TUTORIAL,
    "borgctl sql evictions-by-cause": _SQL,
    "borgctl sql machine-availability": _SQL,
    "borgctl sql machines-that-crash-tasks": _SQL,
    "borgctl sql preempted-jobs": _SQL,
    "borgctl quota approve NUMBER": ("tests/integration/test_cli_orders.py", '"quota", "approve"'),
    "manage.py secrets status": ("tests/integration/test_secrets.py", '"secrets", "status"'),
    "manage.py archive": _ARCHIVE,
    "manage.py archive --verify": ("tests/integration/test_archived_hours.py", "verify=True"),
}
# No test runs these commands, for the reason.
NOWHERE = {
    "deploy/ha/bin/patronictl list": "`tests.deployment` runs this script, but only `patronictl remove`",
    "deploy/ha/bin/patronictl failover borg": "`tests.deployment` and `make ha-test` kill the leader instead",
    "journalctl -u borg-web": "tests run without systemd",
    "journalctl -u borg-link": "tests run without systemd",
    "journalctl -u borg-master@CELL": "tests run without systemd",
    "journalctl -u borg-worker": "tests run without systemd",
    "journalctl -u borg-resolver": "tests run without systemd",
    "systemctl status borg-worker borg-beat": "tests run without systemd",
    "sysctl net.core.rmem_max=4194304": "it changes the host of the test",
    "ss -tn sport = :53": "it is a program of the system, and only lists connections",
}


@dataclass(frozen=True)
class Command:
    """A command of a console block. `result`: the lines below it, in which `…` stands for anything."""

    line: str
    result: tuple[str, ...]

    def shows(self, output: str) -> bool:
        """Return whether the output has the lines of the documented result, in this order."""
        lines = iter(output.splitlines())
        return all(
            any(re.fullmatch(_pattern(want), line) for line in lines) for want in self.result if want != _ANYTHING
        )


def _pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split(_ANYTHING)))


def entries() -> dict[str, str]:
    """Return the text of each alarm's entry by the name of the alarm."""
    parts = re.split(r"^#{2,3} (.+)\n", ALARMS.read_text(), flags=re.MULTILINE)
    return {name: text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name.startswith("Borg")}


def commands(text: str) -> list[Command]:
    """Return the commands in the console blocks of a text."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, *result = part.splitlines()
            found.append(Command(line, tuple(result)))
    return found


def mentioned(text: str) -> set[str]:
    """Return the commands within the sentences of a text: code that begins with a program and has an argument."""
    codes = re.findall(r"`([^`\n]+)`", text)
    return {code for code in codes if code.partition(" ")[0] in _PROGRAMS and " " in code}


class Operator:
    """An SRE at the keyboard of an installation, who types commands of the page."""

    def __init__(self, there: Installation) -> None:
        settings = there.settings
        self._ports = {
            "127.0.0.1:8000": f"127.0.0.1:{settings['PORT']}",
            "127.0.0.1:8443": f"127.0.0.1:{settings['LINK_PORT']}",
            "127.0.0.1:9153": f"127.0.0.1:{settings['BORG_DNS_METRICS_PORT']}",
            "-p 5353": f"-p {there.dns_port}",
        }
        scripts = Path(sys.executable).parent
        self._person = there.environment() | {"BORG_PROFILE": "admin", "PATH": f"{scripts}:{os.environ['PATH']}"}
        # The server processes have the variables of `/etc/borg/borg.env`, and `preload` shows them.
        pairs = Path(f"/proc/{there.pid('preload')}/environ").read_text().split("\0")
        self._server = dict(pair.split("=", 1) for pair in pairs if pair)

    def types(self, line: str) -> str:
        """Run a command, and return its output. Raises `Failed` if its status is not 0."""
        typed = line
        for documented, real in self._ports.items():
            typed = typed.replace(documented, real)
        managed = typed.startswith("manage.py")
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{sys.executable} {typed}" if managed else typed],
            cwd=ROOT,
            env=self._server if managed else self._person,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"`{line}` ended with {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout
