"""The messages between a link shard and a Borglet (§3.3): versioned structs, all that both sides share.

A conversation, after TLS and a WebSocket upgrade authenticated as the machine (`Authorization: Bearer
<hostname>:<secret>`, path `/link`):

    Borglet ── Hello ──────────► shard      the machine and the history that it last served
    Borglet ◄─ Welcome | Refusal ─ shard    session number, or a rejection (then the connection closes)
    Borglet ◄─ Poll ───────────── shard     every few seconds, at once when the desired state changes
    Borglet ── Report ─────────► shard      the FULL state of the machine

A Borglet only answers polls. It may answer a `Poll` with `hold_s` late: when the state changes, at the latest after
`hold_s`. Each frame is one JSON object, tagged by `type`.

The desired state is level-triggered. It is sent in full, and only when the Borglet's last `Report` does not
acknowledge its `generation`. It is fenced by (history ordinal, revision, epoch): a Borglet rejects an older one.
A Borglet starts the tasks in `run`, stops those in `stop`, and leaves all others *running*: it reports them, and the
master decides. So neither lost rows of a database nor a late message can stop tasks by omission.

Other packages import messages from here; the parts of this package import each other. The imports below are the list
of public names: mypy and ruff treat this module as a re-export (`pyproject.toml`).
"""

from borglet.messages.conversation import (
    MAX_FRAME_BYTES,
    OLDEST_PROTOCOL,
    PROTOCOL,
    WIRE_REPORTS_SINCE,
    Hello,
    Poll,
    TaskIdentity,
    ToBorglet,
    ToShard,
    Welcome,
    common_protocol,
    decode_to_borglet,
    decode_to_shard,
    encode,
)
from borglet.messages.desired import Desired, HealthCheck, RestartPolicy, RunAlloc, RunTask, Slack, StopTask, TaskKey
from borglet.messages.joining import JoinAnswer, JoinRequest, authority_digest
from borglet.messages.logs import LogChunk, LogLine, LogRequest
from borglet.messages.packages import PackageFailed, PackageHave, PackageRef, PackageSources, PackageTicket, PeerAddress
from borglet.messages.refusals import MalformedMessage, Refusal
from borglet.messages.reports import MAX_REPORTED_PACKAGES, Report, WireReport, opened, sealed
from borglet.messages.shells import (
    SHELL_CONTEXT,
    SHELL_FRAME_BYTES,
    SHELL_LEAST_COST,
    SHELL_WINDOW_BYTES,
    ShellClaims,
    ShellFrame,
    ShellGrant,
    shell_cost,
    shell_frame,
    shell_frame_of,
)
from borglet.messages.tasks import (
    NO_USAGE,
    AllocReport,
    EndCause,
    Exit,
    Health,
    Phase,
    Removal,
    TaskReport,
    Usage,
    UsageWindow,
)
