"""The connection of a shard to Redis. It sends heartbeats, contacts and usage. It receives notices, log requests and
sessions that another shard has taken.

All of this may be lost. Without Redis, a shard serves its machines and reads changes from the journal.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import redis.asyncio
import redis.asyncio.client
import structlog
from redis.exceptions import RedisError

from borglet.messages import Report
from quota.vocabulary.errors import Rejected
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.shard import Shard
from scheduling.link.transport.owned_tasks import OwnedTasks
from scheduling.link.transport.spread import ConnectionBalance
from scheduling.machines import contact, log_requests
from scheduling.shells import streams
from scheduling.usage import live
from scheduling.usage.measured import MeasuredUsage

log = structlog.get_logger(__name__)

BEAT_S = 1.0
_SESSIONS = "borg:link:sessions"
_LOADS = "borg:link:loads"  # hash: shard -> time, machines, cells
_NOTICES = "borg:cell:*"
_RETRY_S = 1.0


class RedisBridge:
    """The bridge to Redis. Call `start` after the shard has started, and `stop` before it stops."""

    def __init__(self, shard: Shard, url: str) -> None:
        self._shard = shard
        self._redis: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
            url, socket_timeout=5.0, socket_connect_timeout=1.0, retry=None
        )
        self.shells = streams.connect(url)
        self._errands = OwnedTasks()
        self._beaten_at = 0.0  # loop's time of the last heartbeat that arrived
        self._away = False
        self._taken: list[str] = []
        self._balance = ConnectionBalance()
        shard.hearing.on_logs = self._logs_came
        shard.on_session = self._session_taken

    def start(self) -> None:
        self._errands.begin(self._beat_forever())
        self._errands.begin(self._listen_forever())

    async def stop(self) -> None:
        await self._errands.end()
        await self._redis.aclose()
        await self.shells.aclose()

    # -- out

    async def _beat_forever(self) -> None:
        while True:
            try:
                await self._beat()
                self._note(None)
            except (RedisError, OSError) as error:
                self._note(error)
            except Exception:
                # Without a heartbeat, all machines of this shard would count as silent, even if one of them reports.
                log.exception("a heartbeat was not sent completely; the next one follows")
            await asyncio.sleep(BEAT_S)

    async def _beat(self) -> None:
        shard = self._shard
        now = asyncio.get_running_loop().time()
        ages: dict[int, dict[int, float]] = {}
        reports: list[tuple[Connection, MeasuredUsage]] = []
        for held in shard.connections.values():
            if held.heard_at > self._beaten_at and held.answered:
                ages.setdefault(held.cell_id, {})[held.machine_id] = now - held.heard_at
                if held.said is not None and (measured := held.said.measured(held.machine_id)) is not None:
                    reports.append((held, measured))
        taken, shard.freshly_held = shard.freshly_held, {}
        try:
            wall = await contact.beat(
                self._redis, shard.name, shard.cell_ids, ages, taken, overloaded=shard.progress.overloaded
            )
        except BaseException:
            for cell_id, machines in taken.items():
                shard.freshly_held.setdefault(cell_id, set()).update(machines)
            raise
        self._beaten_at = now
        by_cell: dict[int, list[tuple[MeasuredUsage, float]]] = {}
        for held, measured in reports:
            by_cell.setdefault(held.cell_id, []).append((measured, wall - (now - held.heard_at)))
        if by_cell:
            used = {cell_id: live.pack(many) for cell_id, many in by_cell.items()}
            await live.store(self._redis, used)
        await self._spread(wall)

    async def _spread(self, wall: float) -> None:
        """Publish how many machines this shard serves. Ask some to connect again if other shards of its cells serve
        far fewer.
        """
        shard, cells = self._shard, ",".join(map(str, sorted(self._shard.cell_ids)))
        pipe = self._redis.pipeline(transaction=False)
        pipe.hset(_LOADS, shard.name, f"{wall} {len(shard.connections)} {cells}")
        pipe.hgetall(_LOADS)
        others, gone = [], []
        for name, value in (await pipe.execute())[1].items():
            at, machines, served = value.decode().split(" ")
            if wall - float(at) > contact.SHARD_TTL_S:
                gone.append(name)
            elif served == cells and name.decode() != shard.name:
                others.append(int(machines))
        if gone:
            await self._redis.hdel(_LOADS, *gone)
        now = asyncio.get_running_loop().time()
        if number := self._balance.surplus(now, len(shard.connections), others):
            log.info(
                "asked machines to reconnect to other shards", number=number, here=len(shard.connections), others=others
            )
            shard.send_away(number)

    def _note(self, error: Exception | None) -> None:
        """Log once that Redis is away, and once that it is back. After that, no holders are known."""
        if error is not None and not self._away:
            log.warning("redis away", error=str(error))
        elif error is None and self._away:
            log.info("redis is back")
            for held in self._shard.connections.values():
                self._shard.freshly_held.setdefault(held.cell_id, set()).add(held.machine_id)
        self._away = error is not None

    def _logs_came(self, report: Report) -> None:
        for chunk in report.logs:
            self._errands.begin(self._quietly(log_requests.answer(self._redis, chunk)))

    def _session_taken(self, machine_id: int, session: int) -> None:
        """Notify other shards of new sessions, batched per turn of the loop, because machines may return by
        thousands.
        """
        if not self._taken:
            self._errands.begin(self._publish_sessions())
        self._taken.append(f"{machine_id} {session}")

    async def _publish_sessions(self) -> None:
        await asyncio.sleep(0.01)
        taken, self._taken = self._taken, []
        await self._quietly(self._redis.publish(_SESSIONS, "\n".join(taken)))

    async def _quietly(self, work: Any) -> None:
        try:
            await work
        except (RedisError, OSError) as error:
            self._note(error)

    # -- in

    async def _listen_forever(self) -> None:
        while True:
            pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
            try:
                await pubsub.psubscribe(_NOTICES)
                await pubsub.subscribe(
                    _SESSIONS, log_requests.channel(self._shard.name), streams.channel(self._shard.name)
                )
                self._shard.notice()  # whatever was said meanwhile
                while True:
                    # A read without a timeout would not detect that Redis is unreachable.
                    message = await pubsub.get_message(timeout=4.0)
                    if message is not None:
                        await self._take(message)
            except (RedisError, OSError) as error:
                self._note(error)
            except Exception:
                log.exception("a message from Redis cannot be read; the connection is opened again")
            finally:
                await self._quietly(pubsub.aclose())  # type: ignore[no-untyped-call]
            await asyncio.sleep(_RETRY_S)

    async def _take(self, message: dict[str, Any]) -> None:
        channel = message["channel"].decode()
        if channel.startswith("borg:cell:"):
            if int(channel.rpartition(":")[2]) in self._shard.cell_ids:
                self._shard.notice()
        elif channel == _SESSIONS:
            for line in message["data"].splitlines():
                machine_id, session = line.split()
                self._shard.supersede(int(machine_id), int(session))
        elif channel == streams.channel(self._shard.name):
            try:
                self._errands.begin(self._grant_shell(msgspec.json.decode(message["data"], type=streams.ShellRequest)))
            except msgspec.MsgspecError as error:
                log.warning("shell not understood", error=str(error))
        else:
            try:
                asked = msgspec.json.decode(message["data"], type=log_requests.RoutedLogRequest)
            except msgspec.MsgspecError as error:
                log.warning("log request not understood", error=str(error))
                return
            if not self._shard.request_log(asked.machine_id, asked.request):
                await log_requests.answer(self._redis, log_requests.not_connected(asked.request))

    async def _grant_shell(self, asked: streams.ShellRequest) -> None:
        """Send a grant to its machine, or the reason for a rejection to the caller."""
        try:
            grant = await streams.grant(asked)
        except Rejected as refused:
            reason = refused.detail
        else:
            if self._shard.offer_shell(asked.machine_id, grant):
                return
            reason = "the machine has just disconnected; try again"
        await self._quietly(streams.refuse(self.shells, asked.session, reason))
