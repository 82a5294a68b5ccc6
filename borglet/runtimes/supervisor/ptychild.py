"""Replace this process by a program on a terminal: in the task's control groups, as the task's user, in a new session.

    Borglet ── posix_spawn: terminal (or socket) as 0, 1, 2; request as 3; error as 4 ──► this module ── exec

It runs as a separate `python -I -S -E`, as the task's supervisor does, because the Borglet has threads and must not
fork.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import resource
import signal
import termios

from borglet.runtimes.cgroups import cgroupfs
from borglet.runtimes.supervisor import landlock
from borglet.runtimes.supervisor.exec_task import PR_SET_PDEATHSIG, execute, prctl

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


def _become(wanted: dict[str, object]) -> None:
    if not wanted["plain"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    groups, user = wanted["groups"], wanted["user"]
    assert isinstance(groups, dict)
    try:
        cgroupfs.join(groups)
    except OSError as error:
        raise OSError(f"cannot enter the task's control groups: {error.strerror}") from error
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory is short, the kernel ends shells before other processes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ports = wanted["tcp_ports"]
    if isinstance(ports, list):
        landlock.keep_to_ports(ports)
    if isinstance(user, tuple):
        uid, gid, more = user
        if not wanted["plain"]:
            os.fchown(0, uid, gid)
        os.setgroups(more)
        os.setgid(gid)
        os.setuid(uid)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after setuid, which clears it
    if wanted["engine"]:
        from borglet.runtimes.supervisor.container import hide_hybrid_groups

        hide_hybrid_groups()
    directory, argv, environment = wanted["directory"], wanted["argv"], wanted["environment"]
    assert isinstance(directory, str)
    assert isinstance(argv, list)
    assert isinstance(environment, dict)
    os.chdir(directory)
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    execute(argv, environment)
