"""Tests of the rates at which tasks read and write, computed from counters of the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from borglet.runtimes.measuring.traffic import Rates, Traffic, io_stat, net_dev

MIB = 2**20
WRITER = """
import os, sys
with open(sys.argv[1], "wb") as file:
    file.write(b"x" * (4 << 20))
    file.flush()
    os.fsync(file.fileno())
print("written", flush=True)
sys.stdin.read()
"""
DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo: 9999 9 0 0 0 0 0 0 9999 9 0 0 0 0 0 0
  eth0: 1000 9 0 0 0 0 0 0 200 9 0 0 0 0 0 0
  eth1:   50 9 0 0 0 0 0 0 7 9 0 0 0 0 0 0
"""


def test_what_a_process_writes_is_a_rate(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        new, adopted = Traffic.of_new(), Traffic()
        rates = new.look({}, {process.pid}, 2.0)
        assert rates.written >= 2 * MIB
        assert (rates.received, rates.sent) == (0, 0)  # the task shares the machine's network
        assert adopted.look({}, {process.pid}, 2.0) == Rates()  # traffic before the adoption is not counted
        assert new.look({}, {process.pid}, 2.0).written == 0
        process.communicate(b"")
    assert new.look({}, {process.pid}, 2.0) == Rates()  # the process has ended


def test_a_group_of_version_2_counts_what_its_dead_did(tmp_path: Path) -> None:
    file = tmp_path / "io.stat"
    file.write_text("8:0 rbytes=1000 wbytes=2000 rios=1 wios=1\n8:16 rbytes=24 wbytes=0 rios=9\n")
    traffic = Traffic.of_new()
    groups = {"unified": str(tmp_path)}
    assert traffic.look(groups, set(), 2.0) == Rates(512, 1000)
    file.write_text("8:0 rbytes=1000 wbytes=4000\n8:16 rbytes=24 wbytes=0\n")
    assert traffic.look(groups, set(), 4.0) == Rates(0, 500)


def test_devices_are_added_up_and_the_loopback_is_left_out() -> None:
    assert net_dev(DEV) == (1050, 207)
    assert io_stat("") == (0, 0)
    assert io_stat("8:0 \n") == (0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks")
def test_a_network_of_its_own_is_looked_at() -> None:
    command = ["unshare", "--net", "sh", "-c", "echo there; read end"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        traffic = Traffic.of_new()
        traffic.look({}, {process.pid}, 1.0)
        assert traffic._network == (0, 0)
        process.communicate(b"\n")
