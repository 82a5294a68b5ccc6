"""Tests of the WebSocket handshake: our code parses the usual request, and a library parses unusual ones."""

from __future__ import annotations

import pytest
from websockets.client import ClientProtocol
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from scheduling.link.transport.upgrade import read_upgrade


def request(**headers: str) -> bytes:
    client = ClientProtocol(parse_uri("wss://127.0.0.1:8081/link"))
    made = client.connect()
    made.headers["Authorization"] = "Bearer m1:s"
    for name, value in headers.items():
        made.headers.pop(name.replace("_", "-"), None)
        if value:
            made.headers[name.replace("_", "-")] = value
    client.send_request(made)
    return b"".join(client.data_to_send())


def test_the_answer_is_the_one_that_the_library_gives() -> None:
    data = request()
    server = ServerProtocol()
    server.receive_data(data)
    known = next(iter(server.events_received()))
    assert isinstance(known, Request)
    accepted = server.accept(known)
    upgrade = read_upgrade(data)
    assert upgrade is not None
    assert upgrade.authorization == "Bearer m1:s"
    assert f"Sec-WebSocket-Accept: {accepted.headers['Sec-WebSocket-Accept']}\r\n".encode() in upgrade.answer
    assert upgrade.answer.startswith(b"HTTP/1.1 101 ")
    assert upgrade.answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        request()[:-1],
        request() + b"\x81\x80",
        request() + request(),
        request().replace(b"/link", b"/link?a=1"),
        request().replace(b"GET", b"POST"),
        request().replace(b"HTTP/1.1", b"HTTP/1.0"),
        request(Upgrade="h2c"),
        request(Connection="close"),
        request(Sec_WebSocket_Version="12"),
        request(Sec_WebSocket_Key="c2hvcnQ="),
        request(Sec_WebSocket_Key="no base64!"),
        request(Sec_WebSocket_Key=""),
        request(Host=""),
        request(Content_Length="5"),
        request(Transfer_Encoding="chunked"),
        request().replace(b"\r\nUpgrade", b"\r\nAuthorization: Bearer m2:t\r\nUpgrade"),
        request().replace(b"\r\nUpgrade", b"\r\n folded: x\r\nUpgrade"),
        request().replace(b"\r\nUpgrade", b"\r\nno-colon\r\nUpgrade"),
    ],
)
def test_an_unusual_request_is_left_to_the_libraries(data: bytes) -> None:
    assert read_upgrade(data) is None
