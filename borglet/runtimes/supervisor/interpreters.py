"""Start a small Python process that runs one module of this folder, and read its answer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[3])
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)


def spawn(module: str, *arguments: str, file_actions: Sequence[tuple[object, ...]]) -> int:
    """Run the function `main` of a module of this folder in a new process with its own session. Return the pid. Raises
    OSError if the process cannot be started.
    """
    code = f"import sys; sys.path.append({_ROOT!r}); from borglet.runtimes.supervisor.{module} import main; main()"
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-E", "-c", code, *arguments],
        {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
        file_actions=file_actions,
        setsid=True,
        setsigmask=[],
        setsigdef=_DEFAULT_SIGNALS,
    )


async def read_answer(reader: int, within_s: float) -> str:
    """Return the whole text from the pipe `reader`. The pipe ends when the process that writes to it exits, or executes
    another program. Raises TimeoutError after `within_s` seconds.
    """
    loop = asyncio.get_running_loop()
    received = b""
    readable = asyncio.Event()
    loop.add_reader(reader, readable.set)
    try:
        async with asyncio.timeout(within_s):
            while True:
                await readable.wait()
                readable.clear()
                if not (chunk := os.read(reader, 4096)):
                    return received.decode(errors="replace").strip()
                received += chunk
    finally:
        loop.remove_reader(reader)
