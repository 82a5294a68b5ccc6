"""A small HTTP server for tests. At SIGTERM it finishes open requests and exits.

    python3 graceful.py PORT WORD

The path `/` returns WORD. `/metrics` returns the number of these requests in the format of Prometheus. The file needs
no packages, because tests run its text as the command of a task.
"""

from __future__ import annotations

import asyncio
import signal
import sys

TAKES_S = 0.02  # per request, so that some requests are always in progress
LONGEST_S = 5.0  # for requests in progress after SIGTERM


class Server:
    def __init__(self, word: str) -> None:
        self.word = word
        self.served = 0
        self.ending = False
        self.idle: set[asyncio.StreamWriter] = set()
        self.begun = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not self.ending:
                self.idle.add(writer)
                head = await reader.readuntil(b"\r\n\r\n")
                self.idle.discard(writer)
                self.begun += 1
                try:
                    path = head.split(b" ", 2)[1]
                    writer.write(await self._answer(path))
                    await writer.drain()
                finally:
                    self.begun -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            self.idle.discard(writer)
            writer.close()

    async def _answer(self, path: bytes) -> bytes:
        if path == b"/metrics":
            body = f'# TYPE requests_total counter\nrequests_total{{word="{self.word}"}} {self.served}\n'
            kind = "text/plain; version=0.0.4"
        else:
            await asyncio.sleep(TAKES_S)
            self.served += path == b"/"
            body, kind = self.word, "text/plain"
        stays = "close" if self.ending else "keep-alive"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: {stays}\r\n\r\n"
        return (head + body).encode()


async def main(port: int, word: str) -> None:
    ours, asked = Server(word), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    listening = await asyncio.start_server(ours.serve, "127.0.0.1", port)
    await asked.wait()
    listening.close()
    ours.ending = True
    for writer in ours.idle:
        writer.close()
    for _ in range(int(LONGEST_S / 0.01)):
        if not ours.begun:
            break
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
