"""Tests that a task can bind only the ports it was given (§8.1), in each runtime, on the real kernel."""

from __future__ import annotations

import pytest

from borglet.runtimes.supervisor import landlock
from tests.ports import free_port
from tests.real.runtimes.machine import Machine, end_of, key, python, text_of

pytestmark = pytest.mark.skipif(
    not landlock.knows_ports(), reason="kernels before 6.7, or without Landlock, can't keep tasks to their ports"
)

BIND = """
import errno, os, socket, subprocess, sys
def tried(port, family=socket.AF_INET, address="127.0.0.1"):
    with socket.socket(family) as bound:
        try:
            bound.bind((address, port))
        except OSError as error:
            return errno.errorcode[error.errno]
        return "bound"
print(tried({own}), tried({other}), tried(0), tried({other}, socket.AF_INET6, "::"))
"""


async def test_a_task_binds_its_own_ports_and_no_other(machine: Machine) -> None:
    own, other = free_port(), free_port()
    async with machine.runtime() as runtime:
        await runtime.start(python(BIND.format(own=own, other=other), ports={"http": own}), run=1)
        await end_of(runtime)
        assert await text_of(runtime, "stderr") == ""
        assert (await text_of(runtime)).split() == ["bound", "EACCES", "bound", "EACCES"]
        assert runtime.attributes()["isolation.ports"] == "landlock"


async def test_nor_does_anything_that_it_starts(machine: Machine) -> None:
    other = free_port()
    inner = f"import socket; socket.socket().bind(('127.0.0.1', {other}))"
    outer = f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {inner!r}]).returncode)"
    async with machine.runtime() as runtime:
        await runtime.start(python(outer, ports={}), run=1)
        await end_of(runtime)
        assert (await text_of(runtime)).strip() == "1"
        assert "Permission denied" in await text_of(runtime, "stderr", key())
