"""Running the container engine (`crun`) for one task: open the container, start the task inside it.

    supervisor ── run --detach ──► init of the container, which waits and reaps      (its own PID 1)
               ── exec --detach ─► the task's program, inside                        (a child of the supervisor)

The engine is gone when both run; the supervisor, a subreaper, is then parent of both, and learns from the kernel how
the program ended. Control groups are ours: the engine is configured to change none. Imports little, for the
supervisor's sake.
"""

from __future__ import annotations

import ctypes
import os
import signal

_HYBRID = "/sys/fs/cgroup/unified"
_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MNT_DETACH = 2


class ContainerPlace:
    """The place of one task's container. Sent to the supervisor as the tuple of its fields."""

    def __init__(self, engine: str, directory: str, name: str) -> None:
        self.engine = engine
        self.directory = directory  # config.json, process.json, and what the engine leaves
        self.name = name

    def fields(self) -> tuple[str, str, str]:
        return self.engine, self.directory, self.name

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def command(self, verb: str, *options: str) -> list[str]:
        """A command line of the engine, to be run by `become_engine`."""
        return [*self._begin(f"--log={self.path('engine.log')}"), verb, *options, self.name]

    def _begin(self, *options: str) -> list[str]:
        return [self.engine, f"--root={self.path('state')}", "--cgroup-manager=disabled", *options]

    def open(self) -> int:
        """Open the container; the pid of its init. Raises OSError in words."""
        pid_file = self.path("init.pid")
        command = self.command(
            "run", "--detach", "--no-new-keyring", f"--bundle={self.directory}", f"--pid-file={pid_file}"
        )
        status, output = run_engine(command)
        if status != 0:
            raise OSError(f"cannot open the task's container: {self.complaint() or output or status}")
        return read_pid(pid_file)

    def start_command(self) -> list[str]:
        """Starts the task; the engine's process then ends, and `task.pid` names the program's."""
        return self.command(
            "exec", "--detach", f"--pid-file={self.path('task.pid')}", f"--process={self.path('process.json')}"
        )

    def shell_command(self, process: str) -> list[str]:
        """Starts a further program inside and stays until it ends, with its status. `process`: a file of ours."""
        return [*self._begin(), "exec", f"--process={self.path(process)}", self.name]

    def complaint(self) -> str:
        """The last line the engine wrote."""
        try:
            with open(self.path("engine.log"), errors="replace") as file:
                lines = file.read().strip().splitlines()
        except FileNotFoundError:
            return ""
        return lines[-1] if lines else ""


def reason_of(complaint: str, argv: list[str], environment: dict[str, str], working_directory: str) -> str:
    """Why the engine could not start the program, in words for the job's owner."""
    command = argv[0]
    if "chdir" in complaint:
        return f"cannot enter working directory {working_directory}: {complaint.rpartition(': ')[2]}"
    if "not found in $PATH" in complaint or complaint.endswith("No such file or directory"):
        return f"command {command!r} not found" + ("" if "/" in command else f" in PATH {environment.get('PATH', '')}")
    if "exec" in complaint:
        return f"cannot run command {command!r}: {complaint.rpartition(': ')[2]}"
    return f"the container engine failed: {complaint}"


def read_pid(path: str) -> int:
    with open(path) as file:
        return int(file.read())


def run_engine(argv: list[str]) -> tuple[int, str]:
    """Run the engine to its end: exit status and what it wrote."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            hide_hybrid_groups()
            become_engine(argv, writer, writer)
        except Exception as error:  # noqa: BLE001 - the parent receives every error
            os.write(writer, str(error).encode(errors="replace"))
        finally:
            os._exit(127)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    # The engine's end, not the pipe's, is waited for: the init has inherited the pipe.
    os.set_blocking(reader, False)
    try:
        output = os.read(reader, 4096)
    except BlockingIOError:
        output = b""
    os.close(reader)
    return os.waitstatus_to_exitcode(status), output.decode(errors="replace").strip()


def become_engine(argv: list[str], stdout: int, stderr: int, stdin: int = -1) -> None:
    """Become the engine. What it starts inherits these streams and *owns* them, for the engine gives them to the task's
    user: never the machine's /dev/null. Without `stdin`, reading ends at once."""
    if stdin < 0:
        stdin, end = os.pipe()
        os.close(end)
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    signal.set_wakeup_fd(-1)
    for restored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(restored, signal.SIG_DFL)
    os.execve(argv[0], argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})  # noqa: S606 - what this process is for


def hide_hybrid_groups() -> None:
    """Where version 2 of control groups is mounted beside version 1 and has a controller, crun opens no container,
    although it is configured to manage none. In a mount namespace of this process that mount is taken away. Raises
    OSError.
    """
    try:
        with open(os.path.join(_HYBRID, "cgroup.controllers")) as file:
            if not file.read().strip():
                return
    except FileNotFoundError:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for call, arguments in (
        (libc.unshare, (_CLONE_NEWNS,)),
        (libc.mount, (None, b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None)),
        (libc.umount2, (_HYBRID.encode(), _MNT_DETACH)),
    ):
        if call(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot hide {_HYBRID} from the container engine: {os.strerror(number)}")
