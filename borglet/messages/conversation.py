"""The messages between a connected Borglet and a shard, and their encoding."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from borglet.messages.desired import Desired, TaskKey
from borglet.messages.locks import LockAnswer, LockCall, LocksRenewed, RenewLocks
from borglet.messages.logs import LogRequest
from borglet.messages.refusals import MalformedMessage, Refusal
from borglet.messages.reports import WireReport
from borglet.messages.shells import ShellGrant

# Both sides support versions N and N-1, which are one release apart. N-1 ignores new fields of N and does not send
# them, so they have defaults. N-1 rejects a new value of an enumeration, so N replaces it before it sends it to N-1
# (`reports.without_time_limits`).
PROTOCOL = 4
OLDEST_PROTOCOL = 1
WIRE_REPORTS_SINCE = 2
TIME_LIMITS_SINCE = 3
LOCKS_SINCE = 4
MAX_FRAME_BYTES = 8 * 2**20


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="type"):
    protocol: int  # the oldest version that this Borglet supports, so that an older shard accepts the hello
    hostname: str
    boot_id: str
    software: str
    history_id: str = ""  # history of the desired state in force; empty on a new machine
    attributes: dict[str, str] = {}
    capacity: dict[str, int] = {}
    authority: str = ""  # digest of the authorities that the Borglet trusts, see `authority_digest`
    newest: int = 0  # the newest version that this Borglet supports; 0: only `protocol`


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="type"):
    protocol: int  # the version of all further messages
    session: int  # a newer session of a machine replaces an older one
    cell: str
    history_id: str
    zone: str = ""
    authority: str = ""  # PEM of all authorities to trust from now on; empty: no change
    api_url: str = ""  # address of the REST API for tasks


class TaskIdentity(msgspec.Struct, frozen=True):
    """The identity of an incarnation. `token`: a signed JWT, which is secret and expires."""

    key: TaskKey
    token: str

    def __repr__(self) -> str:
        return f"TaskIdentity(key={self.key!r}, token=…)"


class Poll(msgspec.Struct, frozen=True, tag="poll", tag_field="type", omit_defaults=True):
    sequence: int
    hold_s: float = 0.0
    desired: Desired | None = None  # None: the generation that the last report acknowledged is the present one
    logs: list[LogRequest] = []
    identities: list[TaskIdentity] = []  # new identities of tasks in `run`
    rotate: bool = False  # asks for a new secret; the Borglet stores it and sends its digest as `Report.offer`
    accepted: str = ""  # the accepted offer: the Borglet connects with this secret, which ends the old one
    shells: list[ShellGrant] = []  # shells to open now
    windows_until: int = 0  # the master does not need usage windows that end by then any more


# Both sides send messages about locks only in a conversation of protocol `LOCKS_SINCE` or later.
ToBorglet = Welcome | Refusal | Poll | LockAnswer | LocksRenewed
ToShard = Hello | WireReport | LockCall | RenewLocks
Message = TypeVar("Message")
_encoder = msgspec.json.Encoder()
_to_borglet: msgspec.json.Decoder[ToBorglet] = msgspec.json.Decoder(ToBorglet)
_to_shard: msgspec.json.Decoder[ToShard] = msgspec.json.Decoder(ToShard)


def common_protocol(hello: Hello) -> int | None:
    """Return the newest version of the protocol that both sides support, or None if there is no such version."""
    newest = min(max(hello.protocol, hello.newest), PROTOCOL)
    return newest if newest >= max(hello.protocol, OLDEST_PROTOCOL) else None


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode_to_borglet(frame: bytes | str) -> ToBorglet:
    """Decode a message that a shard sent. Raises `MalformedMessage` if the message is not valid. The error names the
    wrong field, for example `$.desired.run[3].limit`.
    """
    return _decode(_to_borglet, frame)


def decode_to_shard(frame: bytes | str) -> ToShard:
    """Decode a message of a Borglet. Raises `MalformedMessage` if the message is not valid. The error names the wrong
    field.
    """
    return _decode(_to_shard, frame)


def _decode(decoder: msgspec.json.Decoder[Message], frame: bytes | str) -> Message:
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from error
