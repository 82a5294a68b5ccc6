"""Tests of reading the kernel's process table, on this test process and its children."""

from __future__ import annotations

import os
import subprocess
import sys

from borglet.runtimes.supervisor import proctable
from borglet.runtimes.supervisor.proctable import Process


def test_a_program_name_with_brackets_and_blanks_is_not_a_trap() -> None:
    fields = [b"S", b"7", b"8", b"9", *[b"0"] * 7, b"11", b"12", b"13", b"14", b"0", b"0", b"4", b"0", b"99"]
    process = Process(5, b"5 (a) S (b c) 1) " + b" ".join([*fields, b"0", b"6", b"0"]))
    assert (process.state, process.ppid, process.threads, process.started) == (b"S", 7, 4, 99)
    assert (process.cpu_ticks, process.reaped_ticks) == (23, 27)
    assert process.rss_bytes == 6 * proctable.PAGE_BYTES


def test_identity_is_number_and_start() -> None:
    own = proctable.read(os.getpid())
    assert own is not None
    assert proctable.still_runs(own.pid, own.started)
    assert not proctable.still_runs(own.pid, own.started + 1)
    assert not proctable.still_runs(2**22 + 1, 1)


def test_a_dead_child_that_is_not_collected_no_longer_runs() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        process = proctable.read(child.pid)
        assert process is not None
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not proctable.still_runs(child.pid, process.started)


def test_descendants_are_found_by_ancestry_and_by_environment() -> None:
    program = "import subprocess, sys; subprocess.run(['cat'])"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, env={"BORG_TEST_MARK": "yes", **os.environ}
    ) as child:
        found: set[int] = set()
        while len(found) < 2:
            found = set(proctable.with_environment("BORG_TEST_MARK=yes"))
            assert child.poll() is None
        below = proctable.descendants(proctable.children_of(proctable.table()), os.getpid())
        assert found <= set(below)
        assert (proctable.pss_bytes(child.pid) or 0) > 2**20
        assert proctable.with_environment("BORG_TEST_MARK=ye") == []
        child.communicate()
