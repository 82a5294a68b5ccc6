import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from serving.ports import NoPort, check_free


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def quiet_port() -> int:
    """Return a free port below the range that the kernel uses for outgoing connections."""
    for port in range(10_000 + os.getpid() % 10_000, 32_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no free port")


def test_a_taken_port_names_setting_holder_and_cure(taken: int) -> None:
    with pytest.raises(
        NoPort, match=rf"LINK_PORT={taken} on 127.0.0.1 cannot be used: it is taken by process {os.getpid()} \("
    ) as error:
        check_free("127.0.0.1", {"LINK_PORT": taken})
    assert "choose another port" in str(error.value)


def test_a_port_shared_by_reuseport_counts_as_taken() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port = quiet_port()
        server.bind(("127.0.0.1", port))
        check_free("127.0.0.1", {"PORT": port})  # TCP is free
        with pytest.raises(NoPort, match=f"DNS_PORT={port} on 127.0.0.1 cannot be used"):
            check_free("127.0.0.1", {"DNS_PORT": port}, udp=["DNS_PORT"])


def test_a_free_port_stays_free(taken: int) -> None:
    port = quiet_port()
    check_free("127.0.0.1", {"PORT": port, "LINK_PORT": port})
