"""Real receivers of notices on loopback for tests: an HTTP server and an SMTP server."""

from __future__ import annotations

import email
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hook(ThreadingHTTPServer):
    """An HTTP server that stores the requests that it receives.

    `calls`: (path, headers, body) of each request, in order. `answers`: the next statuses of a path; after them, 200.
    `slow`: paths whose answers wait until `freed` is set. `frees`: (path, number); the request with this number at this
    path sets `freed`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.calls: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: dict[str, list[int]] = {}
        self.slow: set[str] = set()
        self.freed = threading.Event()
        self.frees: tuple[str, int] | None = None

    def url(self, path: str = "/in") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def bodies(self, path: str = "/in") -> list[bytes]:
        return [body for where, _headers, body in self.calls if where == path]


class _Receive(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls.append((self.path, dict(self.headers), body))
        if self.server.frees and len(self.server.bodies(self.server.frees[0])) >= self.server.frees[1]:
            self.server.freed.set()
        if self.path in self.server.slow:
            self.server.freed.wait(30.0)
        waiting = self.server.answers.get(self.path, [])
        self.send_response(waiting.pop(0) if waiting else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Print no line about a request."""


class Post(socketserver.ThreadingTCPServer):
    """An SMTP server that stores the mails that it receives.

    `mails`: the mails in order. `refuses`: for each recipient that must be rejected, the SMTP code.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Dialogue)
        self.mails: list[EmailMessage] = []
        self.refuses: dict[str, int] = {}


class _Dialogue(socketserver.StreamRequestHandler):
    server: Post

    def handle(self) -> None:
        self._say("220 loopback")
        for line in self.rfile:
            verb = line.split(None, 1)[0].upper().decode() if line.strip() else ""
            if verb in ("EHLO", "HELO", "MAIL", "RSET", "NOOP"):
                self._say("250 ok")
            elif verb == "RCPT":
                to = line.decode().partition("<")[2].partition(">")[0]
                self._say(f"{self.server.refuses[to]} no such box" if to in self.server.refuses else "250 ok")
            elif verb == "DATA":
                self._say("354 go on")
                lines = list(iter(self.rfile.readline, b".\r\n"))
                mail = b"".join(one[1:] if one.startswith(b"..") else one for one in lines)
                self.server.mails.append(email.message_from_bytes(mail, policy=default))  # type: ignore[arg-type]
                self._say("250 taken")
            elif verb == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("500 what?")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def listening(server: socketserver.BaseServer) -> Iterator[socketserver.BaseServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)
