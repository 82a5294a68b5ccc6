"""Run the container engine (`crun`) for one task: open the container, and start the task inside it.

    supervisor ── run --detach ──► init of the container, which waits and reaps      (its own PID 1)
               ── exec --detach ─► the task's program, inside                        (a child of the supervisor)

Each process of the engine ends as soon as the init or the program runs. The supervisor is then the parent of the init
and of the program (it is a subreaper), so the kernel reports the end of the program to the supervisor. The engine
changes no control groups. This module imports few others, because supervisors use it and must stay small.
"""

from __future__ import annotations

import ctypes
import os
import signal

from borglet.runtimes.supervisor.start_errors import cannot_enter, cannot_run, not_found

_HYBRID = "/sys/fs/cgroup/unified"
_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MNT_DETACH = 2


class ContainerPlace:
    """The engine, the directory and the name of one task's container."""

    def __init__(self, engine: str, directory: str, name: str, process: str = "") -> None:
        self.engine = engine
        self.directory = directory  # config.json, process.json, and files of the engine
        self.name = name
        self.process = process or self.path("process.json")  # with secrets, a file in memory

    def fields(self) -> tuple[str, str, str, str]:
        return self.engine, self.directory, self.name, self.process

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def command(self, verb: str, *options: str) -> list[str]:
        """Return the command line of the engine for the action `verb`, such as `run` or `exec`, on this container."""
        return [*self._begin(f"--log={self.path('engine.log')}"), verb, *options, self.name]

    def _begin(self, *options: str) -> list[str]:
        return [self.engine, f"--root={self.path('state')}", "--cgroup-manager=disabled", *options]

    def open(self) -> int:
        """Open the container, and return the pid of its first process (the init). Raises OSError if the engine
        fails.
        """
        pid_file = self.path("init.pid")
        command = self.command(
            "run", "--detach", "--no-new-keyring", f"--bundle={self.directory}", f"--pid-file={pid_file}"
        )
        status, output = run_engine(command)
        if status != 0:
            why = self.complaint() or output or status
            raise OSError(f"cannot open the task's container: {why}; an SRE can check the machine's container engine")
        return read_pid(pid_file)

    def start_command(self) -> list[str]:
        """Return the engine's command that starts the task. When this command has ended, the file `task.pid` contains
        the pid of the task's program.
        """
        return self.command("exec", "--detach", f"--pid-file={self.path('task.pid')}", f"--process={self.process}")

    def shell_command(self, process: str) -> list[str]:
        """Return the engine's command that runs another program in the container. The exit status of the command is
        that of the program. `process`: the name of the file that describes the program.
        """
        return [*self._begin(), "exec", f"--process={self.path(process)}", self.name]

    def complaint(self) -> str:
        """Return the last line of the engine's log, or an empty text if the log has no line."""
        return last_line(self.path("engine.log"))


def last_line(path: str) -> str:
    """Return the last line of a text file; empty if the file does not exist or has no text."""
    try:
        with open(path, errors="replace") as file:
            lines = file.read().strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1] if lines else ""


def reason_of(complaint: str, argv: list[str], environment: dict[str, str], working_directory: str) -> str:
    """Return why the engine could not start the program, as a text for the owner of the job. `complaint`: the engine's
    error text.
    """
    command = argv[0]
    if "chdir" in complaint:
        return cannot_enter(working_directory, complaint.rpartition(": ")[2])
    if "not found in $PATH" in complaint or complaint.endswith("No such file or directory"):
        return not_found(command, environment.get("PATH", ""))
    if "exec" in complaint:
        return cannot_run(command, complaint.rpartition(": ")[2])
    return f"the container engine failed: {complaint}; an SRE can check the machine's container engine"


def read_pid(path: str) -> int:
    with open(path) as file:
        return int(file.read())


def run_engine(argv: list[str]) -> tuple[int, str]:
    """Run a command of the engine until its end. Return the exit status and the output."""
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
    # The pipe may stay open after the engine's end, because the container's init has inherited it.
    os.set_blocking(reader, False)
    try:
        output = os.read(reader, 4096)
    except BlockingIOError:
        output = b""
    os.close(reader)
    return os.waitstatus_to_exitcode(status), output.decode(errors="replace").strip()


def become_engine(argv: list[str], stdout: int, stderr: int, stdin: int = -1) -> None:
    """Replace this process by the engine. If `stdin` is -1, the programs in the container read an empty input.

    The engine makes the task's user the owner of `stdout`, `stderr` and `stdin`. So these must not be the machine's
    /dev/null.
    """
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
    """Move this process into a new mount namespace, and unmount version 2 of control groups there. This is done only if
    both versions 1 and 2 are mounted and version 2 has a controller, because crun cannot open a container in this case.
    Raises OSError if a system call fails.
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
            raise OSError(
                number,
                f"cannot hide {_HYBRID} from the container engine: {os.strerror(number)}; run the Borglet with"
                " CAP_SYS_ADMIN",
            )
