"""Asks the masters of cells how many tasks of a job they would place now (`core/vocabulary/trials`).

    ask ─► borg:trial:<cell>, a list in Redis ─► master: `answering.py` ─► borg:trial:answer:<token> ─► ask

A question is not stored anywhere else, and changes nothing. If a master does not answer in time, there is no answer.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping
from typing import cast

import msgspec
import redis
import structlog

from scheduling.core.vocabulary.trials import TrialAnswer, TrialQuestion
from scheduling.journal import wakeups
from scheduling.models import Cell
from scheduling.usage import cell_view

log = structlog.get_logger(__name__)

# An answer is waited for at most this long.
WITHIN_S = 1.0
KEEP_S = 10
# A master that is busy has at most this many questions; older ones are dropped.
MOST_WAITING = 20
# An answer is used for the same question for this long.
_KEPT_MS = 3_000
_MOST_BYTES = 256 * 1024


def ask(questions: Mapping[Cell, TrialQuestion], *, within_s: float = WITHIN_S) -> dict[int, TrialAnswer]:
    """Send a question to the master of each cell, and return the answers by cell id. Cells whose masters do not answer
    within `within_s` seconds are left out. The field `token` of the questions is set here. The same question is
    answered from the last complete answer for a few seconds, so repeated requests do not take a master's time.
    """
    # A master that runs publishes its view. For a cell without one, nobody would answer.
    packed = {
        cell.id: msgspec.msgpack.encode(question)
        for cell, question in questions.items()
        if cell_view.is_published(cell.id)
    }
    packed = {cell_id: question for cell_id, question in packed.items() if len(question) <= _MOST_BYTES}
    if not packed:
        return {}
    ends = time.monotonic() + within_s
    found: dict[int, TrialAnswer] = {}
    try:
        client = wakeups.client()
        kept = {cell_id: _kept_key(cell_id, question) for cell_id, question in packed.items()}
        for cell_id, stored in zip(kept, cast("list[bytes | None]", client.mget(list(kept.values()))), strict=True):
            if stored is not None:
                found[cell_id] = msgspec.msgpack.decode(stored, type=TrialAnswer)
        tokens = _send(
            client, {cell: one for cell, one in questions.items() if cell.id in kept.keys() - found}, within_s
        )
        while tokens and (left_s := ends - time.monotonic()) > 0:
            taken = client.blpop(list(tokens), timeout=max(0.01, left_s))
            if taken is None:
                break
            name, answer = cast("tuple[bytes, bytes]", taken)
            cell_id = tokens.pop(name.decode())
            found[cell_id] = msgspec.msgpack.decode(answer, type=TrialAnswer)
            if not found[cell_id].untried:  # the next answer to an incomplete one may be complete
                client.set(kept[cell_id], answer, px=_KEPT_MS)
    except (redis.RedisError, msgspec.MsgspecError) as error:
        log.warning("masters could not be asked about a pending job", error=str(error))
    return found


def _send(client: redis.Redis, questions: Mapping[Cell, TrialQuestion], within_s: float) -> dict[str, int]:
    """Send the questions. Return the id of the cell by the key of its answer."""
    keys: dict[str, int] = {}
    with client.pipeline() as pipeline:
        for cell, question in questions.items():
            token = uuid.uuid4().hex
            keys[answer_key(token)] = cell.id
            key = questions_key(cell.id)
            pipeline.set(wanted_key(token), 1, px=round(1000 * within_s))
            pipeline.rpush(key, msgspec.msgpack.encode(msgspec.structs.replace(question, token=token)))
            pipeline.ltrim(key, -MOST_WAITING, -1)
            pipeline.expire(key, KEEP_S)
            pipeline.publish(key, 1)  # a master that waits looks at once
        pipeline.execute()
    return keys


def questions_key(cell_id: int) -> str:
    """Return the key of the list of questions, which is also the channel that announces them. It contains the version
    of their format.
    """
    return f"borg:trial:1:{cell_id}"


def wanted_key(token: str) -> str:
    """Return the key that exists as long as somebody waits for the answer."""
    return f"borg:trial:wanted:{token}"


def answer_key(token: str) -> str:
    return f"borg:trial:answer:{token}"


def _kept_key(cell_id: int, question: bytes) -> str:
    return f"borg:trial:kept:{cell_id}:{hashlib.sha256(question).hexdigest()}"
