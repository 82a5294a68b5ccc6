"""Rebuild past states of cells for a web process. The web process starts this command, and writes requests for past
moments to its standard input.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any, BinaryIO

import msgspec
from django.core.management.base import BaseCommand
from django.db import close_old_connections, connection

from scheduling.history.moments.answering import answer
from scheduling.history.moments.keeper import StateKeeper
from scheduling.history.moments.messages import LENGTH, MomentRequest
from scheduling.history.moments.process import IDLE_S, write_message

# The process leaves the processor to web processes and masters.
_NICE = 5


class Command(BaseCommand):
    help = "Rebuild past states of cells. Web processes start this command; it ends when it is idle."
    requires_system_checks = ()  # they would import all pages, and the first request waits

    def handle(self, *args: Any, **options: Any) -> None:
        os.nice(_NICE)
        output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # log lines are not part of the answers
        keeper = StateKeeper()
        with output:
            while (request := _next_request(sys.stdin.buffer)) is not None:
                close_old_connections()
                write_message(output, msgspec.json.encode(answer(keeper, request)))
                connection.close()  # the process may be idle for long


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
