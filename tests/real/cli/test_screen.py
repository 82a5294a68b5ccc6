"""Tests of what borgctl does at a terminal: `--watch`, `top`, narrow tables, and names after the tab key."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl

import pytest

from tests.borgctl import BORGCTL, run
from tests.real.cli.test_answers import Answer, Server, borgctl, server

__all__ = ["server"]

_PATIENCE_S = 60.0


class Terminal:
    """A terminal of 24 lines and 80 columns in which borgctl runs."""

    def __init__(self, server: Server, *words: str) -> None:
        self._end, end = pty.openpty()
        ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.shown = ""
        self.process = subprocess.Popen(
            [BORGCTL, *words],
            stdin=end,
            stdout=end,
            stderr=end,
            env={**environment(server), "TERM": "xterm"},
            start_new_session=True,
            # A shell that starts tests in the background makes them and their children ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(end)

    def until(self, text: str) -> None:
        """Read the terminal until it shows the text."""
        end = time.monotonic() + _PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self._end], [], [], 0.5)[0]:
                self.shown += os.read(self._end, 65536).decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._end)


def environment(server: Server) -> dict[str, str]:
    where = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | {"HOME": "/nonexistent"}
    url = f"http://127.0.0.1:{server.server_port}"
    return where | {"BORG_URL": url, "BORG_CELL": "cc", "BORG_TENANT": "ubar", "BORG_TOKEN": "secret"}


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for one in opened:
        one.close()


def after_tab(server: Server, line: str) -> subprocess.CompletedProcess[str]:
    """Run borgctl as bash does if the user presses the tab key after `line`."""
    asked = {"_BORGCTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = run([], env=environment(server) | asked, cwd="/")
    assert done.returncode == 0, done.stderr
    return done


def listed(*rows: dict[str, object]) -> Answer:
    return 200, {}, json.dumps({"next": None, "results": rows}).encode()


def usage(**row: object) -> Answer:
    sums = {"cpu": 1500, "ram": 2**30, "disk": 0}
    of = {"running": 1, "measured": 1, "limit": sums, "reservation": sums, "usage": sums}
    job = {"tenant": "ubar", "name": "web", "band": "production", "tasks_total": 2, "tasks_up": 1, **of, **row}
    answer = {"at": "2027-01-31T08:00:00Z", "jobs": 1, "total": of, "results": [job]}
    return 200, {}, json.dumps(answer).encode()


def test_top_shows_the_present_usage_until_ctrl_c(server: Server, terminals: list[Terminal]) -> None:
    server.answers = lambda _: usage()
    terminal = Terminal(server, "top", "--sort", "ram")
    terminals.append(terminal)
    terminal.until("ubar/web  production  1/2")
    assert server.asked[0][1] == "/api/v1/cells/cc/jobs:usage?sort=ram&limit=50"
    server.answers = lambda _: usage(tasks_up=2)
    terminal.until("ubar/web  production  2/2")
    server.answers = lambda _: (503, {}, b'{"code": "unavailable", "detail": "the database is away"}')
    terminal.until("the database is away")
    assert terminal.process.poll() is None, "the last output stays"
    server.answers = lambda _: usage(tasks_up=0)
    terminal.until("0/2")
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.until("\x1b[?1049l")  # the earlier content of the terminal comes back
    assert terminal.process.wait(_PATIENCE_S) == 0


def test_without_a_terminal_top_prints_once_and_watch_is_rejected(server: Server) -> None:
    server.answers = lambda _: usage(measured=0)
    done = borgctl(server, "top")
    assert done.returncode == 0
    assert " ".join(done.stdout.splitlines()[-1].split()) == "ubar/web production 1/2 - 1.5 1.5 - 1 GiB 1 GiB -"
    done = borgctl(server, "status", "--watch")
    assert done.returncode == 2
    assert "--watch needs a terminal as standard output; leave it out" in done.stderr


@pytest.mark.parametrize(
    "line, answers, offered, asked",
    [
        ("borgctl status we", [{"name": "web"}], ["web"], "/jobs/?tenant=ubar&prefix=we&state=live&limit=100"),
        ("borgctl kill dev/w", [{"name": "web"}], ["dev/web"], "/jobs/?tenant=dev&prefix=w&state=live&limit=100"),
        ("borgctl logs web/", [{"index": 0}, {"index": 1}], ["web/0", "web/1"], "/jobs/ubar/web/tasks/?limit=100"),
        ("borgctl logs we", [{"name": "web"}], ["web/"], "/jobs/?tenant=ubar&prefix=we&state=live&limit=100"),
        ("borgctl machine show m", [{"hostname": "m1"}], ["m1"], "/machines/?prefix=m&limit=100"),
        ("borgctl pool show g", [{"name": "gpu"}, {"name": "old"}], ["gpu"], "/pools/?limit=100"),
        ("borgctl kill a/b/c/d", [], [], None),
    ],
)
def test_the_shell_offers_names(
    server: Server, line: str, answers: list[dict[str, object]], offered: list[str], asked: str | None
) -> None:
    server.answers = lambda _: listed(*answers)
    done = after_tab(server, line)
    assert done.stdout.split() == offered
    assert [path for _, path, _ in server.asked] == ([f"/api/v1/cells/cc{asked}"] if asked else [])


def test_a_portal_that_is_away_offers_nothing_and_prints_nothing(server: Server) -> None:
    server.answers = lambda _: (503, {}, b"{}")
    done = after_tab(server, "borgctl status w")
    assert (done.stdout.strip(), done.stderr) == ("", "")
