"""The messages between a connected Borglet and a shard, and their frames."""

from __future__ import annotations

import msgspec

from borglet.messages.desired import Desired, TaskKey
from borglet.messages.logs import LogRequest
from borglet.messages.refusals import MalformedMessage, Refusal
from borglet.messages.reports import WireReport
from borglet.messages.shells import ShellGrant

# Both sides speak N and N-1, which are one release apart. New fields of N have defaults, so that N-1 may leave them
# out, and N-1 ignores them. No enumeration of N-1 ever gets a new value, because N-1 would reject it.
PROTOCOL = 2
OLDEST_PROTOCOL = 1
WIRE_REPORTS_SINCE = 2
MAX_FRAME_BYTES = 8 * 2**20


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="type"):
    protocol: int  # the oldest that this Borglet speaks, so that an older shard accepts it
    hostname: str
    boot_id: str
    software: str
    history_id: str = ""  # the last one served; empty on a new machine
    attributes: dict[str, str] = {}
    capacity: dict[str, int] = {}
    authority: str = ""  # digest of the authorities it trusts, see `authority_digest`
    newest: int = 0  # the newest that it speaks; 0: `protocol` is the only one


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="type"):
    protocol: int  # spoken from now on
    session: int  # newer sessions of a machine supersede older ones
    cell: str
    history_id: str
    zone: str = ""
    authority: str = ""  # PEM of all authorities to trust from now on; empty: those of its hello
    api_url: str = ""  # address of the REST API for tasks


class TaskIdentity(msgspec.Struct, frozen=True):
    """A signed statement that its bearer is this incarnation, for some time: a JWT. Secret."""

    key: TaskKey
    token: str

    def __repr__(self) -> str:
        return f"TaskIdentity(key={self.key!r}, token=…)"


class Poll(msgspec.Struct, frozen=True, tag="poll", tag_field="type", omit_defaults=True):
    sequence: int
    hold_s: float = 0.0
    desired: Desired | None = None  # None: unchanged since the generation the last report acknowledged
    logs: list[LogRequest] = []
    identities: list[TaskIdentity] = []  # new ones, of tasks that should run here
    rotate: bool = False  # make a new secret, store it, and send its digest as `Report.offer`
    accepted: str = ""  # the offer that counts from now on: dial in with it, which ends the old secret
    shells: list[ShellGrant] = []  # to be dialled at once; reports do not contain them
    windows_until: int = 0  # windows of usage that end by then are stored, or not wanted


ToBorglet = Welcome | Refusal | Poll
ToShard = Hello | WireReport
_encoder = msgspec.json.Encoder()
_to_borglet = msgspec.json.Decoder(ToBorglet)
_to_shard = msgspec.json.Decoder(ToShard)


def common_protocol(hello: Hello) -> int | None:
    """Return the newest protocol that both sides speak, or None."""
    newest = min(max(hello.protocol, hello.newest), PROTOCOL)
    return newest if newest >= max(hello.protocol, OLDEST_PROTOCOL) else None


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode_to_borglet(frame: bytes | str) -> ToBorglet:
    """Decode a message. Raises `MalformedMessage`, which names the field (`$.desired.run[3].limit`)."""
    try:
        message: ToBorglet = _to_borglet.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from error
    return message


def decode_to_shard(frame: bytes | str) -> ToShard:
    """Decode a message. Raises `MalformedMessage`, which names the field."""
    try:
        message: ToShard = _to_shard.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from error
    return message
