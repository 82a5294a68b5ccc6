"""Tests of real shells: `borgctl ssh` in a terminal, through portal, Redis, link shard and Borglet into a task."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from borglet.runtimes.supervisor import proctable
from quota.models import Capability, Tenant
from quota.vocabulary.permissions import Role
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Ending
from scheduling.journal import journal
from scheduling.machines import last_contact
from scheduling.machines.joining import join_token_issue
from scheduling.models import Cell, Event, Job, Machine, ShellSession
from scheduling.tasks import transitions
from tests.integration import cli_world, rows, world
from tests.integration.cli_world import BORGCTL, Cli
from tests.integration.link_world import a_job, place, running_link, task, until
from tests.integration.test_link_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_S = 40.0
both_runtimes = pytest.mark.parametrize("shop", ["process", "oci"], indirect=True)


@dataclass
class Place:
    """A cell with a machine on which a task runs, and the user ann, who may open shells in this task."""

    cell: Cell
    job: Job
    ann: Cli
    url: str
    borglet: Borglet
    machine: Machine
    stack: contextlib.ExitStack = field(repr=False)


@pytest.fixture
def shop(shared_portal: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    runtime = getattr(request, "param", "process")
    tmp_path.chmod(0o711)
    cell = rows.a_cell()
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(running_link())
        borglet = stack.enter_context(contextlib.closing(Borglet(tmp_path / "home", link, runtime=runtime)))
        borglet.start(join_token_issue(principal=rows.ME, cell=cell))
        machine = until(lambda: Machine.objects.filter(session__gt=0).first(), seconds=WAIT_S, what="connected")
        job = a_job(cell, command=["sleep", "3600"], env={"COLOUR": "teal"}, limit={"cpu": "100m", "ram": "64Mi"})
        place(job, machine.id)
        until(lambda: task(job).up, seconds=WAIT_S, what="up")
        until(lambda: last_contact.holder_of(cell.id, machine.id), what="holder known")
        yield Place(cell, job, permitted(tmp_path, shared_portal, "ann"), shared_portal, borglet, machine, stack)


def permitted(folder: Path, url: str, name: str) -> Cli:
    user = world.a_user(name, tenant=Tenant.objects.get(), role=Role.OPERATOR)
    Capability.objects.create(user=user, kind="shell", cell="cc", reason="on call")
    return cli_world.of(folder, url, name, tenant=Tenant.objects.get())


class Terminal:
    """A program that runs in a pseudo-terminal of the test."""

    def __init__(self, cli: Cli, *words: str, rows: int = 40, cols: int = 120) -> None:
        self._master, slave = pty.openpty()
        self.size(rows, cols)
        self.process = subprocess.Popen(
            [BORGCTL, *words],
            env=cli.environment | {"TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.printed = b""

    def size(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def see(self, wanted: str) -> re.Match[bytes]:
        """Wait until printed text matches `wanted`, and return the match. Later calls search only the text after it."""
        deadline = time.monotonic() + WAIT_S
        while (found := re.search(wanted.encode(), self.printed)) is None:
            assert time.monotonic() < deadline, f"no {wanted!r} in {self.printed!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # EIO once it has ended
                    self.printed += os.read(self._master, 65536)
        self.printed = self.printed[found.end() :]
        return found

    def end(self) -> int:
        deadline = time.monotonic() + WAIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if select.select([self._master], [], [], 0.05)[0]:
                    self.printed += os.read(self._master, 65536)
        return self.process.wait(0.1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self._master)


def on_terminal(shop: Place, *words: str) -> Terminal:
    return shop.stack.enter_context(contextlib.closing(Terminal(shop.ann, *words)))


def closed() -> ShellSession:
    return until(lambda: ShellSession.objects.filter(state="closed").first(), seconds=WAIT_S, what="session closed")


@both_runtimes
def test_a_shell_in_a_task_is_as_if_one_sat_there(shop: Place) -> None:
    terminal = on_terminal(shop, "ssh", "jfoo/0")
    terminal.see(r"[$#] ")
    terminal.type("echo $COLOUR $BORG_TASK; stty size\r")
    terminal.see("teal cc/ubar/jfoo/0\r\n40 120\r\n")
    terminal.size(51, 132)
    terminal.type("sleep 0.2; stty size\r")
    terminal.see("51 132")
    terminal.type("sleep 600\r")
    terminal.see("sleep 600\r\n")
    terminal.type("\x03")
    terminal.type("echo zw\u00f6lf; exit 7\r")
    terminal.see("zwölf\r\n")
    assert terminal.end() == 7

    row = closed()
    assert (row.actor, row.peer, row.how) == ("ann", "127.0.0.1", "exited with status 7")
    assert row.bytes_typed > 50
    assert row.bytes_printed > 100
    told = list(Event.objects.filter(kind__startswith="shell.").order_by("revision"))
    assert [(event.kind, event.actor, event.task_index) for event in told] == [
        ("shell.opened", "ann", 0),
        ("shell.closed", "ann", 0),
    ]
    assert told[1].data["bytes_printed"] == row.bytes_printed


def test_it_is_inside_the_task_s_own_control_groups(shop: Place) -> None:
    marker = f"BORG_TASK_DIR={next((shop.borglet.home / 'tasks').iterdir())}"
    pid = proctable.with_environment(marker)[0]
    shown = shop.ann.out("ssh", "jfoo/0", "--", "cat", "/proc/self/cgroup")
    assert sorted(shown.splitlines()) == sorted(Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    assert int(shop.ann.out("ssh", "jfoo/0", "--", "id", "-u")) == Path(f"/proc/{pid}").stat().st_uid
    assert marker in shop.ann.out("ssh", "jfoo/0", "--", "env")


@both_runtimes
def test_a_command_passes_bytes_and_its_status(shop: Place) -> None:
    everything = bytes(range(256)) * 4096
    for _attempt in range(2):
        done = subprocess.run(
            [BORGCTL, "ssh", "jfoo/0", "--", "sh", "-c", "cat; exit 3"],
            env=shop.ann.environment,
            input=everything,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (3, b"")
        assert done.stdout == everything
    assert shop.ann.run("ssh", "jfoo/0", "--", "sh", "-c", "kill -9 $$").returncode == 137
    told = shop.ann.run("ssh", "jfoo/0", "--", "nothing-such")
    assert told.returncode != 0
    assert "nothing-such" in told.stdout + told.stderr


@pytest.mark.parametrize("shop", ["oci"], indirect=True)
def test_it_can_do_no_more_than_its_contained_task(shop: Place) -> None:
    def reported(*command: str) -> str:
        return shop.ann.run("ssh", "jfoo/0", "--", *command).stdout

    assert int(reported("id", "-u")) >= 200_000
    assert reported("sh", "-c", "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status").split() == [
        "CapEff:",
        "0000000000000000",
        "CapBnd:",
        "0000000000000000",
        "NoNewPrivs:",
        "1",
        "Seccomp:",
        "2",
    ]
    assert "sleep 3600" in reported("sh", "-c", "tr '\\0' ' ' < /proc/2/cmdline; tr '\\0' ' ' < /proc/*/cmdline")
    assert "No such file" in reported("ls", str(shop.borglet.home))
    assert reported("hostname") != ""
    assert len(reported("sh", "-c", "ls -d /proc/[0-9]*").split()) < 8


def test_a_client_that_does_not_read_fills_no_memory(shop: Place) -> None:
    reader, writer = os.pipe()
    process = shop.stack.enter_context(
        subprocess.Popen(
            [BORGCTL, "ssh", "jfoo/0", "--", "yes"], env=shop.ann.environment, stdin=subprocess.DEVNULL, stdout=writer
        )
    )
    shop.stack.callback(process.kill)
    os.close(writer)
    session = until(lambda: ShellSession.objects.filter(state="open").first(), seconds=WAIT_S, what="open")
    counts: list[int] = []

    def settled() -> bool:
        counts.append(ShellSession.objects.get(pk=session.pk).bytes_printed)
        return len(counts) > 3 and counts[-1] == counts[-2] == counts[-3] > 0

    deadline = time.monotonic() + 90
    while not settled():
        assert time.monotonic() < deadline, counts
        select.select([], [], [], 5.2)  # it is counted every five seconds
    assert counts[-1] <= 512 * 1024
    os.close(reader)
    assert closed().how in ("the client closed the connection",)


def test_withdrawing_the_right_ends_it(shop: Place) -> None:
    terminal = on_terminal(shop, "ssh", "jfoo/0")
    terminal.see(r"[$#] ")
    Capability.objects.all().delete()
    terminal.see("the right to open shells was withdrawn")
    assert terminal.end() == 1
    assert closed().how == "the right to open shells was withdrawn"
    told, document = shop.ann.failing("ssh", "jfoo/0")
    assert document["code"] == "forbidden"
    assert "capability shell" in told


@both_runtimes
def test_it_ends_with_its_task(shop: Place) -> None:
    terminal = on_terminal(shop, "ssh", "jfoo/0")
    terminal.see(r"[$#] ")
    terminal.type("trap '' HUP TERM\r")
    with journal.write(shop.cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(shop.job.id, 0), "killed")])
    assert terminal.end() != 0
    assert closed().how
    assert shop.ann.failing("ssh", "jfoo/0")[1]["code"] == "conflict"


def test_it_ends_with_its_borglet_and_the_task_does_not(shop: Place) -> None:
    terminal = on_terminal(shop, "ssh", "jfoo/0")
    terminal.see(r"[$#] ")
    terminal.type("echo $$\r")
    pid = int(terminal.see(r"\r(\d+)\r\n")[1])
    assert shop.borglet.process is not None
    shop.borglet.process.terminate()
    terminal.see("the machine's Borglet restarts")
    assert terminal.end() == 1
    until(lambda: not Path(f"/proc/{pid}").exists(), seconds=WAIT_S, what="the shell is gone")
    shop.borglet.process.wait(WAIT_S)
    shop.borglet.start()
    until(lambda: task(shop.job).up, seconds=WAIT_S, what="still up")
    assert task(shop.job).incarnation == 1
