"""A proxy between a client and the portal, whose connections a test can break."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Cut:
    """A TCP proxy on loopback in front of the portal. `cut` breaks all open connections."""

    def __init__(self, portal: str) -> None:
        self._behind = int(portal.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                portal = socket.create_connection(("127.0.0.1", self._behind))
                self._open += [client, portal]
                for pair in ((client, portal), (portal, client)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
        source.close()
