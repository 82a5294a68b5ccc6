"""The part of a master that answers questions about jobs that do not fit (`asking.py` sends them).

The master has the state of the cell in memory, so it can try a job with the code that places tasks. It places no tasks
meanwhile, so the time for answers is limited: for each question, and in total.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import redis
import structlog

from scheduling.core.cell.state import CellState
from scheduling.core.trials.search import answer
from scheduling.core.trials.trial import Trial
from scheduling.core.vocabulary.plan import Booking
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.trials import TrialQuestion
from scheduling.cures.asking import KEEP_S, MOST_WAITING, answer_key, questions_key, wanted_key
from scheduling.journal import wakeups

log = structlog.get_logger(__name__)

# No trial of a question begins after this time.
WITHIN_S = 0.25
# Answers take at most this share of a master's time, but after a pause up to `BURST_S` seconds in a row.
SHARE = 0.1
BURST_S = 1.0
# The arrays of machines are freed when nobody has asked for this long.
_IDLE_S = 60.0


class Answerer:
    """Answers the questions about one cell. `clock`: seconds, for the limits on time."""

    def __init__(self, cell_id: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cell_id, self._clock = cell_id, clock
        self._trial: Trial | None = None
        self._left_s, self._counted = BURST_S, clock()
        self._used = clock()

    def turn(self, state: CellState, policy: Policy, *, bookings: Sequence[Booking] = ()) -> bool:
        """Answer the oldest question, if there is one and time is left for it. Return whether one was answered.

        `bookings`: the capacity that the last pass has booked for gangs. It is left out, but for the job's own booking.
        """
        now = self._clock()
        self._left_s = min(BURST_S, self._left_s + SHARE * (now - self._counted))
        self._counted = now
        if self._left_s <= 0.0:
            return False
        question = self._next()
        if question is None:
            if now - self._used > _IDLE_S:
                self._trial = None
            return False
        self._used = now
        try:
            self._answer(question, state, policy, bookings)
        except Exception:  # a question that cannot be answered must not stop the master
            log.exception("the master cannot compute which changes would help a pending job", cell_id=self._cell_id)
            self._trial = None
        self._left_s -= self._clock() - now
        return True

    def _next(self) -> TrialQuestion | None:
        """Take the oldest question that somebody still waits for."""
        for _ in range(MOST_WAITING + 1):
            taken: list[bytes | None] = []
            if not wakeups.send("take question", lambda client: taken.append(_take(client, self._cell_id))):  # noqa: B023
                return None
            if not taken or taken[0] is None:
                return None
            try:
                question = msgspec.msgpack.decode(taken[0], type=TrialQuestion)
            except msgspec.MsgspecError:  # of another version of the software
                continue
            wanted: list[bool] = []
            key = wanted_key(question.token)
            wakeups.send("look at question", lambda client: wanted.append(bool(client.exists(key))))  # noqa: B023
            if wanted == [True]:
                return question
        return None

    def _answer(self, question: TrialQuestion, state: CellState, policy: Policy, bookings: Sequence[Booking]) -> None:
        trial = self._trial
        if trial is None or trial.state is not state:
            trial = self._trial = Trial(state, policy)
        trial.follow(policy)
        ends = self._clock() + WITHIN_S
        others = [booking for booking in bookings if booking.job_id != question.base.job_id]
        closed = frozenset(machine for booking in others for machine, _ in booking.on)
        found = answer(trial, question, now=time.time(), closed=closed, has_time=lambda: self._clock() < ends)
        packed = msgspec.msgpack.encode(found)
        key = answer_key(question.token)

        def store(client: redis.Redis) -> None:
            with client.pipeline() as pipeline:
                pipeline.rpush(key, packed)
                pipeline.expire(key, KEEP_S)
                pipeline.execute()

        wakeups.send("answer question", store)


def _take(client: redis.Redis, cell_id: int) -> bytes | None:
    return client.lpop(questions_key(cell_id))  # type: ignore[return-value]
