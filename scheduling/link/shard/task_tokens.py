"""The identity tokens of tasks, which a shard signs and sends to machines in polls.

A task gets a token when its machine is asked to run it, and a new token after half of the old token's lifetime. Only
the machine that should run a task gets its token.
"""

from __future__ import annotations

import random
import time

from borglet.messages import Phase, RunTask, TaskIdentity
from scheduling.identity.task_tokens import RENEW_S, SigningKey, issue
from scheduling.link.shard.connection import Connection
from scheduling.link.views.desired import Loaded

# The identities of a machine that returns are still valid. They are renewed at a random time within this period.
SPREAD_S = 300.0


class Identities:
    """Signs identity tokens. `issuer`: the URL of the portal, whose API verifies the tokens."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.key: SigningKey | None = None

    def due(self, held: Connection, loaded: Loaded, now: float, rng: random.Random) -> list[TaskIdentity]:
        """Return the identity tokens for the new tasks of a machine, or for all its tasks if it is time to renew them.

        `held`: the machine's connection, with the view of its previous state. `loaded`: its new desired state. A task
        is new if the previous view does not contain it. Without a previous view, the tasks that are not up are new.
        Call this method before the connection gets the new view.
        """
        if self.key is None:
            return []
        run = loaded.desired.run
        before = held.view
        if before is None:
            up = Phase.UP.value
            wanted = [task for task in run if loaded.view.run[task.key].phase != up]
            all_new = len(wanted) == len(run)
            held.renew_identities_at = now + (_half_life(rng) if all_new else rng.uniform(0.0, SPREAD_S))
        elif now >= held.renew_identities_at:
            held.renew_identities_at = now + _half_life(rng)
            wanted = run
        else:
            wanted = [task for task in run if task.key not in before.run]
        return [self._issue(task) for task in wanted]

    def _issue(self, task: RunTask) -> TaskIdentity:
        assert self.key is not None
        return TaskIdentity(task.key, issue(self.key, task, issuer=self.issuer, now=time.time()))


def _half_life(rng: random.Random) -> float:
    return RENEW_S * rng.uniform(0.9, 1.0)
