"""Replace this process by a program on a terminal, with the task's control groups and user, in a new session.

    Borglet ── posix_spawn: terminal (or socket) as 0, 1, 2; request as 3; error as 4 ──► this module ── exec

This module runs in a separate process (`python -I -S -E`), because the Borglet has threads and must not fork.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import resource
import signal
import termios

from borglet.runtimes.supervisor import landlock
from borglet.runtimes.supervisor.exec_task import become_user, execute, join_groups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ASK, ANSWER = 3, 4


def main() -> None:
    os.set_inheritable(ASK, False)
    os.set_inheritable(ANSWER, False)
    data = b""
    while chunk := os.read(ASK, 1 << 20):
        data += chunk
    os.closerange(ANSWER + 1, 2**31 - 1)
    try:
        _become(marshal.loads(data))  # noqa: S302 - from the Borglet, through a pipe of ours
    except Exception as error:  # noqa: BLE001 - the Borglet receives every error
        os.write(ANSWER, (str(error) or repr(error)).encode(errors="replace")[:2000])
    os._exit(127)


def _become(wanted: dict[str, Any]) -> None:
    """Replace this process by the program. `wanted`: the fields of `PtyRequest`. Raises OSError if the program cannot
    be started.
    """
    if not wanted["plain"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    join_groups(wanted["groups"])
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory is short, the kernel ends shells before other processes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if wanted["tcp_ports"] is not None:
        landlock.keep_to_ports(wanted["tcp_ports"])
    if wanted["user"] is not None and not wanted["plain"]:
        os.fchown(0, *wanted["user"][:2])
    become_user(wanted["user"])
    if wanted["engine"]:
        from borglet.runtimes.supervisor.container import hide_hybrid_groups

        hide_hybrid_groups()
    os.chdir(wanted["directory"])
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    execute(wanted["argv"], wanted["environment"])
