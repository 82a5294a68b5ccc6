"""Locks compared with a slow model, in random sequences of what tasks, users and time do.

The model knows for each lock its holder, token and content, and for each session whether its lease has ended. It is
true in every state that at most one session holds a lock, that tokens grow, and that sequence numbers have no gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from borglet.messages import TaskKey, TaskRun
from quota.vocabulary.errors import Rejected
from scheduling.locks import locks, sessions
from scheduling.locks.sessions import Connected, Seeker, Space
from scheduling.models import LockFile
from tests.examples import examples
from tests.integration import lock_rows, rows
from tests.integration.lock_rows import connected

pytestmark = pytest.mark.django_db(transaction=True)

NAMES, RUNS, USERS = st.sampled_from(["a", "b/c"]), st.integers(0, 1), st.just("ann")


@dataclass
class Held:
    """A lock in the model. `holder`: the owner of the session that has acquired it, also after its lease has ended."""

    token: int = 0
    holder: str = ""
    sequence: int = 0
    content: str = ""
    exists: bool = False


@dataclass
class Model:
    locks: dict[str, Held] = field(default_factory=lambda: {name: Held() for name in ("a", "b/c")})
    live: set[str] = field(default_factory=set)  # owners whose session has not ended
    uids: dict[str, Any] = field(default_factory=dict)
    newest_token: int = 0

    def held(self, name: str) -> str:
        """Return who holds a lock now, or an empty text."""
        holder = self.locks[name].holder
        return holder if holder in self.live else ""

    def ended(self, owner: str) -> None:
        self.live.discard(owner)
        self.uids.pop(owner, None)
        for lock in self.locks.values():
            if lock.holder == owner:
                lock.holder = ""


def tried(action: Callable[[], Any]) -> tuple[Any, str]:
    """Return the result of an action, or the code with which it was rejected."""
    try:
        return action(), ""
    except Rejected as error:
        return None, error.code


class Locks(RuleBasedStateMachine):
    space: Space
    machine: Connected

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def teardown(self) -> None:
        LockFile.objects.all().delete()
        lock_rows.let_leases_end()

    def seeker(self, run: int) -> Seeker:
        return Seeker(f"web/{run}", machine=self.machine.machine_id, run=TaskRun(TaskKey("a" * 32, run, 1), 1))

    def user(self, name: str) -> Seeker:
        return Seeker(name, uid=self.model.uids.get(name))

    def acquire(self, name: str, seeker: Seeker, content: str | None) -> None:
        lock, holder = self.model.locks[name], self.model.held(name)
        done, code = tried(lambda: locks.acquire(self.space, name, seeker, content=content))
        if code == "session-ended":
            assert seeker.uid is not None
            assert seeker.owner not in self.model.live
            self.model.uids.pop(seeker.owner, None)
            return
        if code:
            assert code == "lock-held"
            assert holder
            assert holder != seeker.owner
            return
        found, again = done
        assert holder in ("", seeker.owner)
        assert again == (holder == seeker.owner)
        if not again:
            assert found.token > self.model.newest_token
            self.model.newest_token = found.token
            lock.holder = seeker.owner
        lock.token, lock.exists = found.token, True
        self.model.live.add(seeker.owner)
        if seeker.run is None:
            self.model.uids[seeker.owner] = found.session
        if content is not None and (content != lock.content or not lock.sequence):
            lock.content, lock.sequence = content, lock.sequence + 1

    @rule(name=NAMES, run=RUNS, content=st.sampled_from([None, "x", "y"]))
    def task_acquires(self, name: str, run: int, content: str | None) -> None:
        self.acquire(name, self.seeker(run), content)

    @rule(name=NAMES, user=USERS)
    def user_acquires(self, name: str, user: str) -> None:
        self.acquire(name, self.user(user), None)

    @rule(name=NAMES, run=RUNS)
    def task_releases(self, name: str, run: int) -> None:
        owner = f"web/{run}"
        holds = self.model.held(name) == owner
        others, code = tried(lambda: locks.release(self.space, name, self.seeker(run)))
        assert code in (("",) if holds else ("lock-not-held", "not-found"))
        if code:
            return
        self.model.locks[name].holder = ""
        assert (others is not None) == any(lock.holder == owner for lock in self.model.locks.values())
        if others is None:
            self.model.ended(owner)

    @rule(name=NAMES, content=st.sampled_from(["1", "2"]), stale=st.integers(0, 3))
    def somebody_writes_with_a_token(self, name: str, content: str, stale: int) -> None:
        lock = self.model.locks[name]
        token = lock.token - stale
        _, code = tried(lambda: locks.write(self.space, name, content, actor="x", token=token))
        valid = not stale and self.model.held(name)
        assert code in (("",) if valid else ("token-expired", "not-found"))
        if code:
            return
        lock.content, lock.sequence = content, lock.sequence + 1

    @rule(name=NAMES, off_by=st.integers(0, 1))
    def somebody_writes_if_nothing_changed(self, name: str, off_by: int) -> None:
        lock = self.model.locks[name]
        sequence = (lock.sequence if lock.exists else 0) + off_by
        _, code = tried(lambda: locks.write(self.space, name, "w", actor="x", if_sequence=sequence))
        assert code == ("sequence-differs" if off_by else "")
        if code:
            return
        lock.content, lock.sequence, lock.exists = "w", lock.sequence + 1, True

    @rule(name=NAMES)
    def somebody_deletes(self, name: str) -> None:
        lock = self.model.locks[name]
        _, code = tried(lambda: locks.delete(self.space, name))
        assert code == ("not-found" if not lock.exists else "lock-held" if self.model.held(name) else "")
        if code:
            return
        lock.content, lock.sequence, lock.exists, lock.holder = "", lock.sequence + 1, False, ""

    @rule(run=RUNS)
    def a_lease_ends(self, run: int) -> None:
        lock_rows.let_leases_end(f"web/{run}")
        self.model.ended(f"web/{run}")

    @rule(user=USERS)
    def the_lease_of_a_user_ends(self, user: str) -> None:
        lock_rows.let_leases_end(user)
        uid = self.model.uids.get(user)
        self.model.ended(user)
        if uid is not None:
            self.model.uids[user] = uid  # the user still gives the id

    @rule(run=RUNS)
    def a_run_ends(self, run: int) -> None:
        sessions.end_runs({self.machine: [TaskRun(TaskKey("a" * 32, run, 1), 1)]})
        self.model.ended(f"web/{run}")

    @rule(name=NAMES)
    def an_owner_ends_the_session_of_a_lock(self, name: str) -> None:
        ended, code = tried(lambda: locks.evict(self.space, name))
        assert code == ("" if self.model.locks[name].exists else "not-found")
        assert (ended.owner if ended is not None else "") == self.model.held(name)
        if ended is not None:
            self.model.ended(ended.owner)

    @invariant()
    def the_rows_equal_the_model(self) -> None:
        for name, lock in self.model.locks.items():
            found = locks.find(self.space, name)
            assert (found is not None) == lock.exists
            if found is not None:
                assert (found.sequence, found.token, found.content) == (lock.sequence, lock.token, lock.content)
                assert (found.holder or "") == self.model.held(name)


def test_locks_behave_as_a_slow_model() -> None:
    cell, tenant = rows.a_cell("model"), rows.a_tenant("model")
    machine = type(
        "Machine", (Locks,), {"space": Space(cell.id, tenant.id), "machine": connected(rows.a_machine(cell))}
    )
    with transaction.atomic():  # no commit per step, and no notices
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples(45),
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=[HealthCheck.function_scoped_fixture],
            ),
        )
        transaction.set_rollback(True)
