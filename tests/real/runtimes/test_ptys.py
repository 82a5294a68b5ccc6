"""Tests of programs on a real pseudo-terminal: their output, how they end, and that no process of them remains."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from borglet.runtimes.supervisor.ptys import Pty, PtyRequest, ShellRefused, spawn
from tests.real.runtimes.machine import BOUND_S, eventually, is_alive

PATH = f"{os.environ['PATH']}:{sys.base_prefix}/bin"


async def opened(tmp_path: Path, *argv: str, plain: bool = False, rows: int = 30, cols: int = 100) -> Pty:
    environment = {"PATH": PATH, "TERM": "dumb", "HOME": str(tmp_path)}
    return await spawn(PtyRequest(list(argv), environment, str(tmp_path), {}, None, rows, cols, plain))


async def all_of(pty: Pty) -> bytes:
    printed = b""
    while data := await pty.read(4096):
        printed += data
    return printed


async def until(pty: Pty, wanted: bytes) -> bytes:
    printed = b""
    async with asyncio.timeout(BOUND_S / 2):
        while wanted not in printed:
            data = await pty.read(4096)
            assert data, printed
            printed += data
    return printed


def test_it_has_a_terminal_of_its_size_and_tells_its_status(tmp_path: Path) -> None:
    async def scenario() -> None:
        pty = await opened(tmp_path, "sh", "-c", "stty size; pwd; tty; exit 7")
        printed = (await all_of(pty)).decode().split()
        assert printed[:3] == ["30", "100", str(tmp_path)]
        assert printed[3].startswith("/dev/pts/")
        assert await pty.exited() == 7
        assert await pty.close() == 7

    asyncio.run(scenario())


def test_interrupts_and_new_sizes_reach_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        # Without noflsh, the kernel discards output just after it has sent the signal, and with it a quick answer.
        traps = "trap 'stty size' WINCH; trap 'echo interrupted; exit 3' INT"
        script = f"stty noflsh; {traps}; echo ready; while :; do sleep 0.05; done"
        pty = await opened(tmp_path, "sh", "-c", script)
        await until(pty, b"ready")
        pty.resize(51, 132)
        await until(pty, b"51 132")
        await pty.write(b"\x03")
        await until(pty, b"interrupted")
        assert await pty.exited() == 3
        await pty.close()

    asyncio.run(scenario())


def test_a_plain_one_passes_every_byte_as_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        pty = await opened(tmp_path, "cat", plain=True)
        everything = bytes(range(256)) * 64
        writing = asyncio.ensure_future(pty.write(everything))
        back = b""
        while len(back) < len(everything):
            back += await pty.read(4096)
        await writing
        pty.end_of_input()
        assert back + await all_of(pty) == everything
        assert await pty.close() == 0

    asyncio.run(scenario())


def test_closing_ends_all_of_its_session_even_who_ignores_the_hang_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        pty = await opened(tmp_path, "sh", "-c", "trap '' HUP TERM; sleep 3600 & echo $!; while :; do sleep 1; done")
        child = int((await until(pty, b"\n")).split()[0])
        os.kill(child, 0)
        assert await pty.close() == -signal.SIGKILL
        await eventually(lambda: not is_alive(child), "its child's end")

    asyncio.run(scenario())


def test_what_can_not_be_run_is_refused_in_words(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ShellRefused, match="command 'nothing-such' not found"):
            await opened(tmp_path, "nothing-such")
        with pytest.raises(ShellRefused, match="No such file"):
            await opened(tmp_path / "gone", "sh")
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())


def test_a_reader_who_stops_stops_the_program_and_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        pty = await opened(tmp_path, "seq", "1", "20000", plain=True)
        assert (await all_of(pty)).decode().split() == [str(number) for number in range(1, 20001)]
        await pty.close()

    asyncio.run(scenario())
