"""Identities of tasks at a shard, and which tasks get a new one with the next poll.

A task has one when its machine is asked to run it, and gets another when half of its lifetime has passed. What should
run on a machine decides, so that a machine holds the identities of its own tasks alone.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

from borglet.messages import Phase, RunTask, TaskIdentity
from scheduling.identity.tokens import RENEW_S, SigningKey, issue
from scheduling.link.views.desired import Loaded
from scheduling.link.views.diff import View

# Machines that come back have identities still good for a while: they get new ones spread over this.
SPREAD_S = 300.0


@dataclass(slots=True)
class Identified:
    """The identities of the tasks of one connection.

    `renew_at`: the event-loop time at which all of them are renewed.
    """

    renew_at: float = math.inf


class Identities:
    """The identities that a shard signs. `issuer`: URL of the portal, whose API verifies them."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.key: SigningKey | None = None

    def due(
        self, identified: Identified, before: View | None, loaded: Loaded, now: float, rng: random.Random
    ) -> list[TaskIdentity]:
        """Return the identities to send now. `before`: the tasks known until now; None on a new connection."""
        if self.key is None:
            return []
        run = loaded.desired.run
        if before is None:
            up = Phase.UP.value
            wanted = [task for task in run if loaded.view.run[task.key].phase != up]
            all_new = len(wanted) == len(run)
            identified.renew_at = now + (_half_life(rng) if all_new else rng.uniform(0.0, SPREAD_S))
        elif now >= identified.renew_at:
            identified.renew_at = now + _half_life(rng)
            wanted = run
        else:
            wanted = [task for task in run if task.key not in before.run]
        return [self._issue(task) for task in wanted]

    def _issue(self, task: RunTask) -> TaskIdentity:
        assert self.key is not None
        return TaskIdentity(task.key, issue(self.key, task, issuer=self.issuer, now=time.time()))


def _half_life(rng: random.Random) -> float:
    return RENEW_S * rng.uniform(0.9, 1.0)
