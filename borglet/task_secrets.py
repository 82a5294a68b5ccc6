"""The values of secrets and config files that tasks use. They are only in the memory of this process, and in files in
memory.

    before a start ─► SecretValet.values: ask the link until all values are there ─► runtime.start
    new version    ─► SecretValet.renew: ask the link ─► runtime.renew_secrets ─► the files of the running task

    keys of all tasks that wait ─► one request per machine at a time ─► answers

If the link cannot be reached, a task that has started before starts again with the values that it had.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import random
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from borglet.identity.credentials import Credentials
from borglet.machine_specs import link_address
from borglet.messages import RESTART, SIGNAL, RunTask, SecretRef, SecretValue, SecretValues, TaskKey

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 16 * 2**20
MOST_KEYS = 50
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
# New versions come to many machines at once, so each waits a random part of this time.
RENEW_WITHIN_S = 1.0


class SecretsUnavailable(Exception):
    """The error if the link sent no values. The message has the reason, and never a value. `answered`: the link has
    rejected the request, or is busy; otherwise it could not be reached.
    """

    def __init__(self, text: str, *, answered: bool) -> None:
        super().__init__(text)
        self.answered = answered


class RenewFiles(Protocol):
    """Replaces files of a running task, as `Runtime.renew_secrets` does."""

    def __call__(self, key: TaskKey, secrets: Sequence[SecretValue], *, signal: bool) -> Awaitable[None]: ...


class SecretSource(Protocol):
    """The interface to the link for the values of secrets. `of` blocks: call it in threads."""

    def of(self, keys: Sequence[TaskKey]) -> list[SecretValues]:
        """Return the values for incarnations, one answer per key. Raises `SecretsUnavailable` if the link sends
        none.
        """


class LinkSecrets:
    """Requests values from the link of a real cell. Each request uses the present `credentials`."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._address = link_address(url)
        self._credentials = credentials

    def of(self, keys: Sequence[TaskKey]) -> list[SecretValues]:
        connection = http.client.HTTPSConnection(*self._address, timeout=TIMEOUT_S, context=self._credentials.context)
        headers = {"Authorization": self._credentials.bearer(), "Content-Type": "application/json"}
        try:
            connection.request("POST", "/secrets", msgspec.json.encode(keys), headers)
            response = connection.getresponse()
            status, body = response.status, response.read(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise SecretsUnavailable(
                f"cannot reach the link server for the secrets of the task: {error or type(error).__name__}; check the"
                " network of this machine",
                answered=False,
            ) from error
        finally:
            connection.close()
        if status != 200:
            raise _rejection(status, body)
        try:
            answers = msgspec.json.decode(body, type=list[SecretValues])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # The text of `error` could contain a part of the answer.
            detail = "cannot read the link server's answer with secrets; use the same release of Borglet and cell"
            raise SecretsUnavailable(f"{detail} ({type(error).__name__})", answered=False) from None
        if len(answers) != len(keys):
            raise SecretsUnavailable("the link server's answer with secrets is not complete; try again", answered=True)
        return answers


class SecretValet:
    """Gets the values of secrets for the tasks of one machine, and renews the files of running tasks.

    `source`: None for a simulated machine, whose tasks have no processes that could use secrets. `renew_files`:
    replaces the files of a running task. Call all methods from one asyncio loop.
    """

    def __init__(self, source: SecretSource | None, renew_files: RenewFiles) -> None:
        self._source, self._renew_files = source, renew_files
        self._held: dict[TaskKey, list[SecretValue]] = {}  # the newest ones, for a start without the link
        self._renewals: dict[TaskKey, asyncio.Task[None]] = {}
        self._waiting: dict[TaskKey, asyncio.Future[SecretValues]] = {}
        self._asking: asyncio.Task[None] | None = None
        # A thread of its own, because a request to a link that is away takes long.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="secrets")

    async def values(self, task: RunTask) -> list[SecretValue]:
        """Return the values of all secrets of a task. If one of them is missing, ask again until the link sends it."""
        if self._source is None:
            return []
        pause_s, logged = FIRST_PAUSE_S, ""
        while True:
            try:
                answer = await self._ask(task.key)
                reason = "; ".join(answer.problems)
                if not reason:
                    self._held[task.key] = answer.values
                    return answer.values
            except SecretsUnavailable as error:
                held = self._held.get(task.key)
                if held is not None and not error.answered:
                    log.warning(
                        "cannot get new secrets for task %s, so it starts with those that the Borglet got last: %s",
                        task.name,
                        error,
                    )
                    return held
                reason = str(error)
            if reason != logged:
                log.warning("task %s (%s) waits for secrets: %s", task.name, task.key, reason)
                logged = reason
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def held(self, task: RunTask) -> list[SecretValue]:
        """Return the newest values that the link has sent for a task."""
        return self._held.get(task.key, [])

    def renew(self, task: RunTask, present: Sequence[SecretRef]) -> None:
        """Replace the files of a running task by the versions that `task` names, as soon as the link sends them.
        `present`: the secrets and config files that the task has. Do nothing if all its files have these versions. A
        config file of which a new version restarts the task stays as it is until then.
        """
        has = {ref.place: ref.version for ref in present}
        newer = [ref for ref in task.secrets if _renewed(ref) and ref.version > has.get(ref.place, 0)]
        wanted = {ref.place: ref.version for ref in newer}
        self._stop_renewal(task.key)
        if wanted and self._source is not None:
            self._renewals[task.key] = asyncio.get_running_loop().create_task(self._renew(task, wanted, has))

    async def _renew(self, task: RunTask, wanted: dict[tuple[str, str], int], has: dict[tuple[str, str], int]) -> None:
        pause_s, logged = FIRST_PAUSE_S, ""
        await asyncio.sleep(random.uniform(0.0, RENEW_WITHIN_S))
        while True:
            try:
                answer = await self._ask(task.key)
                refs = {value.ref(): value for value in answer.values}
                values = [value for ref, value in refs.items() if _renewed(ref)]
                signal = any(ref.on_change == SIGNAL and ref.version > has.get(ref.place, 0) for ref in refs)
                await self._renew_files(task.key, values, signal=signal)
                if not answer.problems:  # a start without the link must not go back to an older version
                    self._held[task.key] = answer.values
                came = {ref.place: ref.version for ref in refs}
                has |= {ref.place: ref.version for ref in refs if _renewed(ref)}
                if all(came.get(place, 0) >= version for place, version in wanted.items()):
                    return
                reason = "; ".join(answer.problems) or "the link sent an older version"
            except (SecretsUnavailable, OSError) as error:
                reason = str(error)
            if reason != logged:
                log.warning("cannot update all secret files of task %s; the Borglet tries again: %s", task.name, reason)
                logged = reason
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _ask(self, key: TaskKey) -> SecretValues:
        """Return the link's answer for an incarnation. Incarnations that wait meanwhile are in the next request."""
        future = self._waiting.get(key)
        if future is None:
            future = self._waiting[key] = asyncio.get_running_loop().create_future()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_for_all())
        return await asyncio.shield(future)

    async def _ask_for_all(self) -> None:
        assert self._source is not None
        while self._waiting:
            batch = {key: self._waiting.pop(key) for key in list(self._waiting)[:MOST_KEYS]}
            try:
                loop = asyncio.get_running_loop()
                answers = await loop.run_in_executor(self._thread, self._source.of, list(batch))
            except Exception as error:  # noqa: BLE001 - the callers receive every error
                for future in batch.values():
                    future.set_exception(error)
                    future.exception()  # a caller that was cancelled does not read it
                continue
            for future, answer in zip(batch.values(), answers, strict=True):
                future.set_result(answer)

    def forget(self, key: TaskKey) -> None:
        """Forget the values for an incarnation that does not start again."""
        self._held.pop(key, None)
        self._stop_renewal(key)

    def _stop_renewal(self, key: TaskKey) -> None:
        renewal = self._renewals.pop(key, None)
        if renewal is not None:
            renewal.cancel()

    async def close(self) -> None:
        """Stop all renewals. The next Borglet continues them."""
        running = [*self._renewals.values(), *([self._asking] if self._asking is not None else [])]
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)


def _renewed(ref: SecretRef) -> bool:
    """Return whether the file of a running task is replaced by a new version."""
    return bool(ref.file) and ref.on_change != RESTART


def _rejection(status: int, body: bytes) -> SecretsUnavailable:
    """Return the error for the link's rejection, which is a problem document."""
    try:
        document = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        document = {}
    detail = str(document.get("detail", "check that link server and Borglet have the same release"))
    answered = status < 500 or document.get("code") == "secrets-busy"
    return SecretsUnavailable(f"the link server sent no secrets (HTTP {status}): {detail[:500]}", answered=answered)
