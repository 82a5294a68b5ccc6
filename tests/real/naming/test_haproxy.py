"""Tests of HAProxy with the SRV records of a job that has more tasks than fit in one datagram.

HAProxy does not repeat a truncated query over TCP, so its configuration names the resolver with `tcp@`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections import Counter
from pathlib import Path

from tests.ports import free_port
from tests.real.naming.process import MANY, Process

CONFIG = """
global
    stats socket {folder}/stats level admin
defaults
    mode http
    timeout connect 2s
    timeout client 5s
    timeout server 5s
resolvers datagrams
    nameserver one 127.0.0.1:{dns}
    accepted_payload_size 8192
    timeout resolve 200ms
resolvers streams
    nameserver one tcp@127.0.0.1:{dns}
    accepted_payload_size 65535
    timeout resolve 200ms
listen few
    bind 127.0.0.1:{port}
    server-template task 120 _rpc._tcp.web.ubar.cc.borg.internal resolvers datagrams init-addr none
backend many
    server-template task 120 _rpc._tcp.many.ubar.cc.borg.internal resolvers streams init-addr none
backend cut
    server-template task 120 _rpc._tcp.many.ubar.cc.borg.internal resolvers datagrams init-addr none
"""


def servers(stats: Path) -> Counter[str]:
    """Return the number of different server addresses by backend, from HAProxy's statistics socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(stats))
        sock.sendall(b"show servers state\n")
        lines = sock.makefile().read().splitlines()
    rows = [line.split() for line in lines if line and line[0].isdigit() and " task" in line]
    return Counter(backend for backend, _, _ in {(row[1], row[4], row[18]) for row in rows if row[4] != "-"})


def test_all_tasks_are_found_over_tcp_however_many(tmp_path: Path) -> None:
    process = Process("127.0.0.1", free_port())
    try:
        process.until(lambda: "status=loading" in process.status())
        process.load()
        process.until(lambda: "status=ok" in process.status())
        config, stats = tmp_path / "haproxy.cfg", tmp_path / "stats"
        config.write_text(CONFIG.format(folder=tmp_path, dns=process.port, port=free_port()))
        with (tmp_path / "haproxy.log").open("wb") as log:
            haproxy = subprocess.Popen(["haproxy", "-db", "-f", str(config)], stdout=log, stderr=log)
        try:
            process.until(lambda: servers(stats) == {"few": 3, "many": MANY})
        finally:
            haproxy.terminate()
            haproxy.wait(10)
    finally:
        assert "Traceback" not in process.stop()


def test_the_program_of_this_test_is_there() -> None:
    assert shutil.which("haproxy")
