"""The messages between a link shard and a Borglet (§3.3), as versioned structs.

A conversation begins with TLS and a WebSocket upgrade of path `/link`, with the header `Authorization: Bearer
<hostname>:<secret>`:

    Borglet ── Hello ──────────► shard      the machine and the history of its desired state
    Borglet ◄─ Welcome | Refusal ─ shard    session number, or a rejection (then the connection closes)
    Borglet ◄─ Poll ───────────── shard     every few seconds, at once when the desired state changes
    Borglet ── Report ─────────► shard      the FULL state of the machine

A Borglet only answers polls. It may delay the answer to a `Poll` until its state changes, but at most for `hold_s`
seconds. Each frame is one JSON object, tagged by `type`.

The desired state is level-triggered. The shard sends it in full, and only if the Borglet's last `Report` does not
acknowledge its `generation`. A Borglet rejects a state whose (history ordinal, revision, epoch) is lower than that of
the state that it has. Each restore of the cell's database from a backup starts a new history, with a higher ordinal.
The Borglet starts the tasks in `run`, stops the tasks in `stop`, and leaves all other tasks *running*: it reports them,
and the master decides about them. So neither lost rows of a database nor a late message can stop tasks.

Other packages import messages from this module; the modules of this package import each other. The imports below are
the list of public names: mypy and ruff treat this module as a re-export (`pyproject.toml`).
"""

from borglet.messages.conversation import (
    LOCKS_SINCE,
    MAX_FRAME_BYTES,
    OLDEST_PROTOCOL,
    PROTOCOL,
    TIME_LIMITS_SINCE,
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
from borglet.messages.locks import LockAnswer, LockCall, LocksRenewed, RenewLocks, RunSession, TaskRun
from borglet.messages.logs import LogChunk, LogLine, LogRequest
from borglet.messages.packages import PackageFailed, PackageHave, PackageRef, PackageSources, PackageTicket, PeerAddress
from borglet.messages.refusals import MalformedMessage, Refusal
from borglet.messages.reports import MAX_REPORTED_PACKAGES, Report, WireReport, opened, sealed, without_time_limits
from borglet.messages.secrets import CONFIG, NOTHING, RESTART, SECRET, SIGNAL, SecretRef, SecretValue, SecretValues
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
