"""The connection of a shard to Redis. The shard sends its heartbeat, the time of the last contact with each machine,
and the usage of tasks. It receives notices of changes, requests for logs, and the ids of machines that have connected
to another shard.

All of these messages may be lost. Without Redis, a shard still serves its machines and reads changes from the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog
from redis.exceptions import RedisError

from borglet.messages import Report
from quota.vocabulary.errors import Rejected
from scheduling.link.shard.shard import Shard
from scheduling.link.transport.redis_client import RedisClient
from scheduling.link.transport.spread import ConnectionBalance
from scheduling.locks import notices as lock_notices
from scheduling.machines import last_contact, log_requests
from scheduling.shells import streams
from scheduling.usage import live_usage
from scheduling.usage.measured import MeasuredUsage

log = structlog.get_logger(__name__)

BEAT_S = 1.0
_SESSIONS = "borg:link:sessions"
_LOADS = "borg:link:loads"  # hash: shard -> time, machines, cells
_NOTICES = "borg:cell:*"


class RedisBridge(RedisClient):
    """The connection to Redis. Call `start` after the shard has started, and `stop` before the shard stops."""

    def __init__(self, shard: Shard, url: str) -> None:
        super().__init__(url, use="heartbeats, usage, and requests from the portal")
        self._shard = shard
        self.shells = streams.connect(url)
        self._new_sessions: list[str] = []
        self._balance = ConnectionBalance()
        self.on_lock_notice: Callable[[bytes], None] | None = None
        self.on_subscribed: Callable[[], None] | None = None
        shard.hearing.on_logs = self._logs_came
        shard.on_session = self._session_taken

    def start(self) -> None:
        self._tasks.begin(self._beat_forever())
        self._tasks.begin(
            self._listen_forever(
                *(_NOTICES, _SESSIONS, lock_notices.CHANNEL),
                log_requests.channel(self._shard.name),
                streams.channel(self._shard.name),
            )
        )

    async def stop(self) -> None:
        await super().stop()
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
                # Without heartbeats, all machines of this shard would count as silent.
                log.exception("cannot send a complete heartbeat; the next one follows in a second")
            await asyncio.sleep(BEAT_S)

    async def _beat(self) -> None:
        shard = self._shard
        now = asyncio.get_running_loop().time()
        ages: dict[int, dict[int, float]] = {}
        usages: dict[int, list[tuple[MeasuredUsage, float]]] = {}
        heard, shard.roster.heard = shard.roster.heard, set()
        for held in heard:
            age_s = now - held.heard_at
            ages.setdefault(held.cell_id, {})[held.machine_id] = age_s
            if held.last_report is not None and (measured := held.last_report.measured(held.machine_id)) is not None:
                usages.setdefault(held.cell_id, []).append((held.cpu.normalised_usage(measured), age_s))
        taken, shard.freshly_held = shard.freshly_held, {}
        try:
            wall = await last_contact.beat(
                self._redis, shard.name, shard.cell_ids, ages, taken, overloaded=shard.progress.overloaded
            )
        except BaseException:
            shard.roster.heard |= heard
            for cell_id, machines in taken.items():
                shard.freshly_held.setdefault(cell_id, set()).update(machines)
            raise
        if usages:
            packed = {
                cell_id: live_usage.pack([(measured, wall - age_s) for measured, age_s in many])
                for cell_id, many in usages.items()
            }
            await live_usage.store(self._redis, packed)
        await self._spread(wall)

    async def _spread(self, wall: float) -> None:
        """Publish how many machines this shard serves. If it serves too many, close the connections of some of them,
        which then connect again. `wall`: the present time, in seconds since the epoch.
        """
        shard, cells = self._shard, ",".join(map(str, sorted(self._shard.cell_ids)))
        pipe = self._redis.pipeline(transaction=False)
        pipe.hset(_LOADS, shard.name, f"{wall} {len(shard.connections)} {cells}")
        pipe.hgetall(_LOADS)
        others, gone = [], []
        for name, value in (await pipe.execute())[1].items():
            at, machines, served = value.decode().split(" ")
            if wall - float(at) > last_contact.SHARD_TTL_S:
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
        if error is None and self._away:
            # Redis may have lost which shard holds which machine.
            for held in self._shard.connections.values():
                self._shard.freshly_held.setdefault(held.cell_id, set()).add(held.machine_id)
        super()._note(error)

    def _logs_came(self, report: Report) -> None:
        for chunk in report.logs:
            self._tasks.begin(self._attempt(log_requests.answer(self._redis, chunk)))

    def _session_taken(self, machine_id: int, session: int) -> None:
        """Notify other shards of a machine's new session. One message contains all sessions of the last 10 ms."""
        if not self._new_sessions:
            self._tasks.begin(self._publish_sessions())
        self._new_sessions.append(f"{machine_id} {session}")

    async def _publish_sessions(self) -> None:
        await asyncio.sleep(0.01)
        taken, self._new_sessions = self._new_sessions, []
        await self._attempt(self._redis.publish(_SESSIONS, "\n".join(taken)))

    # -- in

    def _subscribed(self) -> None:
        self._shard.notice()  # earlier notices may be lost
        if self.on_subscribed is not None:
            self.on_subscribed()

    async def _take(self, channel: str, data: bytes) -> None:
        if channel.startswith("borg:cell:"):
            if int(channel.rpartition(":")[2]) in self._shard.cell_ids:
                self._shard.notice()
        elif channel == _SESSIONS:
            for line in data.splitlines():
                machine_id, session = line.split()
                self._shard.supersede(int(machine_id), int(session))
        elif channel == lock_notices.CHANNEL:
            if self.on_lock_notice is not None:
                self.on_lock_notice(data)
        elif channel == streams.channel(self._shard.name):
            self._tasks.begin(self._grant_shell(msgspec.json.decode(data, type=streams.ShellRequest)))
        else:
            asked = msgspec.json.decode(data, type=log_requests.RoutedLogRequest)
            if not self._shard.request_log(asked.machine_id, asked.request):
                await log_requests.answer(self._redis, log_requests.not_connected(asked.request))

    async def _grant_shell(self, asked: streams.ShellRequest) -> None:
        """Send the grant of a shell to the machine. If this is not possible, send the reason to the client."""
        try:
            grant = await streams.grant(asked)
        except Rejected as error:
            reason = error.detail
        else:
            if self._shard.offer_shell(asked.machine_id, grant):
                return
            reason = "the machine has just disconnected; try again"
        await self._attempt(streams.reject(self.shells, asked.session, reason))
