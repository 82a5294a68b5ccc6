"""Notices that locks have changed, sent through Redis after a commit. Waiting requests look again when one arrives.

A lost notice does no harm, because each waiting request also looks again after some seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.db import transaction

from scheduling.journal import wakeups

CHANNEL = "borg:locks"


class LockKey(NamedTuple):
    """Names a lock."""

    cell_id: int
    tenant_id: int
    name: str


def publish(changed: Iterable[Sequence[Any]]) -> None:
    """After the commit of this transaction, send a notice for each lock: cell id, tenant id, name."""
    message = "\n".join(f"{cell_id} {tenant_id} {name}" for cell_id, tenant_id, name in changed)
    if message:
        transaction.on_commit(lambda: wakeups.send("notice of a lock", lambda redis: redis.publish(CHANNEL, message)))


def read(message: bytes) -> list[LockKey]:
    """Return the locks in a notice. Raises ValueError if it has another form."""
    found = []
    for line in message.decode().splitlines():
        cell_id, tenant_id, name = line.split(" ")
        found.append(LockKey(int(cell_id), int(tenant_id), name))
    return found
