"""Turn a forked process into a task: move it into the task's control groups, set its limits and its user, then execute
the program. This module imports few others, so that a start is fast and supervisors stay small.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal

from borglet.runtimes.cgroups import cgroupfs
from borglet.runtimes.supervisor.start_errors import cannot_enter, cannot_run, not_found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from borglet.runtimes.supervisor.container import ContainerPlace

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE)  # ignored by the supervisor, not by tasks


class TaskLaunch:
    """The Borglet's request to start a task. The supervisor reads it from stdin, encoded with the module `marshal`."""

    directory: str  # the task's directory, with exit.json and the control fifo
    log_directory: str
    working_directory: str
    argv: list[str]
    environment: dict[str, str]
    groups: cgroupfs.Groups
    user: tuple[int, int, list[int]] | None  # uid, gid, supplementary groups
    open_files: int
    nice: int
    policy: int  # scheduling class: SCHED_IDLE, SCHED_BATCH; 0 for the ordinary one
    oom_score_adj: int
    notice_s: float
    ram_limit: int  # bytes, 0 for no limit
    log_file_bytes: int
    log_file_s: float
    log_files: int
    log_bytes_s: int
    tcp_ports: list[int] | None  # the ports that the task may bind; None: all
    device_rules: list[str] | None = None  # the devices that the task may open; None: no rules
    container: tuple[str, str, str, str] | None = None  # fields of container.ContainerPlace; None: an ordinary process

    def __init__(self, fields: dict[str, object]) -> None:
        for name, value in fields.items():
            setattr(self, name, value)


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(
            ctypes.get_errno(), f"the kernel rejected option {option} of prctl; an SRE can check the machine's kernel"
        )


def join_groups(groups: cgroupfs.Groups, device_rules: list[str] | None = None) -> None:
    """Move this process into the task's control groups. Raises OSError if the kernel does not allow it."""
    try:
        if device_rules is not None:
            cgroupfs.allow_devices(groups, device_rules)
        cgroupfs.join(groups)
    except OSError as error:
        raise OSError(
            f"cannot enter the task's control groups: {error}; an SRE can check the machine's control groups"
        ) from error


def become_user(user: tuple[int, int, list[int]] | None) -> None:
    """Switch this process to `user`; None keeps the present user. The kernel then kills this process when its parent
    ends.
    """
    if user is not None:
        uid, gid, groups = user
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # setuid clears this setting, so it comes last


def enter_groups(launch: TaskLaunch) -> None:
    """Move this process into the task's control groups and scheduling class. Raises OSError if the kernel does not
    allow it.
    """
    join_groups(launch.groups, launch.device_rules)
    if launch.nice:
        os.nice(launch.nice)
    if launch.policy:
        os.sched_setscheduler(0, launch.policy, os.sched_param(0))


def no_core_dumps() -> None:
    """Let this process and its children write no core dumps, because their memory may contain secrets."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def allowed_files(wanted: int) -> int:
    """Return the maximum number of open files for a task: `wanted`, or the maximum of this process if that is lower."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)


def become_task(launch: TaskLaunch, supervisor: int, stdout: int, stderr: int) -> None:
    """Replace this process by the task's program, with the task's control groups, limits and user. Raises OSError if a
    step fails. `stdout`, `stderr`: file descriptors.
    """
    os.setsid()
    enter_groups(launch)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(launch.oom_score_adj))
    files = allowed_files(launch.open_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    no_core_dumps()
    become_user(launch.user)
    if os.getppid() != supervisor:
        os._exit(127)
    signal.set_wakeup_fd(-1)
    for restored in (*IGNORED, signal.SIGXFSZ):
        signal.signal(restored, signal.SIG_DFL)
    try:
        os.chdir(launch.working_directory)
    except OSError as error:
        raise OSError(cannot_enter(launch.working_directory, str(error.strerror))) from error
    os.umask(0o022)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    execute(launch.argv, launch.environment)


def become_contained(launch: TaskLaunch, box: ContainerPlace, stdout: int, stderr: int) -> None:
    """Replace this process by the container engine, which starts the task in its container. Raises OSError if the
    engine cannot be started.
    """
    from borglet.runtimes.supervisor.container import become_engine  # only containers need this import

    os.setsid()
    enter_groups(launch)
    become_engine(box.start_command(), stdout, stderr)


def execute(argv: list[str], environment: dict[str, str]) -> None:
    """Replace this process by the program `argv[0]`, which is searched in the PATH of `environment`. Raises OSError,
    with a text for the owner of the job, if the program cannot be executed.
    """
    name = argv[0]
    path = environment.get("PATH", "")
    candidates = [name] if "/" in name else [os.path.join(part, name) for part in path.split(":")]
    reason = ""
    for candidate in candidates:
        try:
            os.execve(candidate, argv, environment)  # noqa: S606 - what this process is for
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if "/" in name or os.path.lexists(candidate):  # otherwise this user cannot enter a directory of PATH
                reason = reason or str(error.strerror)
    raise OSError(cannot_run(name, reason) if reason else not_found(name, path))
