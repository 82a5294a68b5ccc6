"""The process that rebuilds past states of cells for one web process, which starts it.

It reads `MomentRequest`s from standard input, and writes a `MomentAnswer` for each of them to standard output.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import sys
from typing import BinaryIO

import django
import msgspec
from django.conf import settings

from scheduling.core.garbage import collection_paused
from scheduling.history.moments.messages import LENGTH, MomentRequest
from scheduling.history.moments.process import IDLE_S, write_message

# The process leaves the processor to web processes and masters.
_NICE = 5
# The apps whose rows the process reads. The other apps have pages, REST and the console. Their imports
# take 0.7 s of CPU time.
_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "quota", "scheduling"]


def main() -> None:
    os.nice(_NICE)
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # log lines are not part of the answers
    load()
    from django.db import close_old_connections, connection

    from scheduling.history.moments.answering import answer
    from scheduling.history.moments.kept_states import StateKeeper

    keeper = StateKeeper()
    with output:
        while (request := _next_request(sys.stdin.buffer)) is not None:
            close_old_connections()
            write_message(output, msgspec.json.encode(answer(keeper, request)))
            connection.close()  # the process may be idle for long


def load() -> None:
    """Import the code that rebuilds states, and set up Django with the apps that it needs."""
    with collection_paused():
        settings.INSTALLED_APPS = _APPS
        django.setup()
        importlib.import_module("scheduling.history.moments.answering")
    gc.freeze()  # the garbage collector need not examine the imported code


def _next_request(stream: BinaryIO) -> MomentRequest | None:
    """Return the next request for a past state from `stream`. Return None if the web process has ended, or if it has
    sent no request for `IDLE_S` seconds.
    """
    if not select.select([stream], [], [], IDLE_S)[0]:
        return None
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return msgspec.json.decode(stream.read(LENGTH.unpack(head)[0]), type=MomentRequest)


if __name__ == "__main__":
    main()
