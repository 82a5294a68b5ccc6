"""Tests of reserving the resolver's port on real sockets: a port in use is rejected, with the process that holds it."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from structlog.testing import capture_logs

from serving.ports import NoPort, bound, reserved, wanted
from tests.ports import free_port

HOST = "127.0.0.1"
BOUND_S = 20.0


def test_a_port_that_others_share_is_refused_with_its_holder() -> None:
    with (
        reserved(HOST, 0) as port,
        bound(HOST, port, socket.SOCK_DGRAM),
        pytest.raises(NoPort, match=rf"BORG_DNS_PORT={port} on {HOST} .* process {os.getpid()} \(") as error,
        reserved(HOST, port, patience_s=0.0),
    ):
        raise AssertionError("taken twice")
    assert "choose another port" in str(error.value)


def test_of_two_that_start_at_once_one_gets_the_port_and_all_its_processes_share_it() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(reserved(HOST, free_port()))
        with pytest.raises(NoPort, match="it is taken;"), reserved(HOST, port, patience_s=0.0):
            raise AssertionError("taken twice")
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM) * 2:
            stack.enter_context(bound(HOST, port, kind))


def test_a_process_that_is_ending_is_waited_for() -> None:
    port = free_port()

    def start() -> int:
        with reserved(HOST, port, patience_s=BOUND_S) as got:
            return got

    with capture_logs() as told, ThreadPoolExecutor(1) as threads:
        with bound(HOST, port, socket.SOCK_DGRAM):
            starting = threads.submit(start)
            deadline = time.monotonic() + BOUND_S
            while not told:
                assert time.monotonic() < deadline, "it does not say that it waits"
                time.sleep(0.001)
            assert not starting.done()
        assert starting.result(BOUND_S) == port
    assert f"BORG_DNS_PORT={port}" in told[0]["reason"]


def test_an_address_of_others_is_named_with_its_setting() -> None:
    with (
        pytest.raises(NoPort, match=r"BORG_DNS_METRICS_PORT=9 on 192\.0\.2\.1 cannot be used: "),
        wanted("BORG_DNS_METRICS_PORT", "192.0.2.1", 9),
    ):
        bound("192.0.2.1", 9, socket.SOCK_STREAM)
