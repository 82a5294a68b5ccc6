"""The supervisor of one task: a small process that continues when the Borglet ends.

    Borglet ── launch (stdin), "stop" and "signal" lines (fifo) ──► supervisor ── fork, exec, signals ──► the task
    Borglet ◄─ "started" | "failed …" (stdout), exit.json ─ supervisor ◄─ stdout, stderr, SIGCHLD ─ the task

The supervisor starts the task in its control groups, with its limits, and copies the task's output to log files. When
the task's first process has ended, the supervisor kills all other processes of the task, and writes exit.json as the
last step. If the supervisor itself is killed, the kernel kills the task's first process, and the Borglet kills the
others.

The supervisor runs as `python -I -S -E`. Each import costs every task memory and start-up time, so this module does not
import json (8 ms), typing or dataclasses. It uses the modules `exec_task`, `outputs` and `exit_record`.
"""

from __future__ import annotations

import marshal
import math
import os
import select
import signal
import sys
import time

from borglet.runtimes.cgroups import cgroupfs
from borglet.runtimes.supervisor import landlock, proctable
from borglet.runtimes.supervisor.exec_task import (
    IGNORED,
    PR_SET_CHILD_SUBREAPER,
    TaskLaunch,
    become_contained,
    become_task,
    no_core_dumps,
    prctl,
)
from borglet.runtimes.supervisor.exit_record import out_of_memory, reserve_exit, write_exit
from borglet.runtimes.supervisor.outputs import Outputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from borglet.runtimes.supervisor.container import ContainerPlace

COMMAND_BYTES = 65536
KILL_POLL_S = 0.01
ENGINE_PROCESSES = 8
# The longest time between the kernel's notification that memory ran out and its kill.
OOM_WITHIN_S = 2.0
NEVER_RAN = 127 << 8  # the wait status of a program that ended with status 127


class TaskSupervisor:
    """The supervisor of one task. Call `start`, `run`, `finish` and `verdict`, in this order."""

    def __init__(self, launch: TaskLaunch) -> None:
        self.launch = launch
        self.pid = 0
        self.init = 0  # pid of the container's init
        self.processes = 0  # the task's limit of processes, while the engine has a higher one
        self.wait_status: int | None = None
        self.stop_cause = ""
        self.stop_detail = ""
        self.stop_notice_s = 0.0
        self.stop_deadline: float | None = None  # monotonic seconds
        self.killed_after_notice = False
        self.oom_until: float | None = None  # after a notification, a kill may follow until then, monotonic seconds
        self.oom_kills = 0  # kills before this run
        self.poll = select.poll()
        self.control = os.open(os.path.join(launch.directory, "control"), os.O_RDWR | os.O_NONBLOCK)
        self.unread = b""
        self.oom_event = -1
        self.outputs = Outputs(launch, self.poll)
        self.wakeup, self.wakeup_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    # -- starting

    def start(self) -> str:
        """Start the task. Return the reason if it cannot start, otherwise an empty text."""
        os.close(os.open(os.path.join(self.launch.directory, "begun"), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        reserve_exit(self.launch.directory)
        if self.launch.tcp_ports is not None:
            # The rules also apply to the supervisor: the kernel lets a process enter a container only under its rules.
            landlock.keep_to_ports(self.launch.tcp_ports)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.set_wakeup_fd(self.wakeup_writer, warn_on_full_buffer=False)
        for caught in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(caught, lambda *_: None)
        for ignored in IGNORED:
            signal.signal(ignored, signal.SIG_IGN)
        stdout, stderr = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        failure, failure_writer = os.pipe2(os.O_CLOEXEC)
        box = self._container()
        if box is not None:
            try:
                self.init = box.open()
                self._make_room()
            except (OSError, ValueError) as error:
                self.wait_status = NEVER_RAN
                return str(error)
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                if box is not None:
                    become_contained(self.launch, box, stdout[1], stderr[1])
                else:
                    become_task(self.launch, supervisor, stdout[1], stderr[1])
            except Exception as error:  # noqa: BLE001 - the parent receives every error
                os.write(failure_writer, (str(error) or repr(error)).encode(errors="replace")[:2000])
            finally:
                os._exit(127)
        os.close(failure_writer)
        os.close(stdout[1])
        os.close(stderr[1])
        # The log files are opened after the fork, so that they do not delay the task.
        self.outputs.keep(stdout=stdout[0], stderr=stderr[0])
        self.poll.register(self.wakeup, select.POLLIN)
        self.poll.register(self.control, select.POLLIN)
        self.oom_kills = cgroupfs.oom_kills(self.launch.groups)
        self.oom_event = cgroupfs.watch_oom(self.launch.groups)
        if self.oom_event >= 0:
            self.poll.register(self.oom_event, select.POLLIN)
        reason = b""
        while chunk := os.read(failure, 4096):  # the exec closes the other side
            reason += chunk
        os.close(failure)
        if box is not None and not reason:
            return self._await_contained(box)
        return reason.decode(errors="replace")

    def _container(self) -> ContainerPlace | None:
        if self.launch.container is None:
            return None
        from borglet.runtimes.supervisor.container import ContainerPlace  # only containers need this import

        return ContainerPlace(*self.launch.container)

    def _make_room(self) -> None:
        """Raise the task's limit of processes if it is too low for the container engine, which runs under the same
        limit.
        """
        limit = cgroupfs.processes_limit(self.launch.groups)
        if 0 < limit < ENGINE_PROCESSES:
            self.processes = limit
            cgroupfs.limit_processes(self.launch.groups, ENGINE_PROCESSES)

    def _await_contained(self, box: ContainerPlace) -> str:
        """Wait for the end of the engine. Then the task's program runs, or could not start. Return why it could not
        start, otherwise an empty text.
        """
        from borglet.runtimes.supervisor.container import read_pid, reason_of

        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        if self.processes:
            cgroupfs.limit_processes(self.launch.groups, self.processes)
        if status == 0:
            self.pid = read_pid(box.path("task.pid"))
            return ""
        self.wait_status = NEVER_RAN
        launch = self.launch
        return reason_of(box.complaint(), launch.argv, launch.environment, launch.working_directory)

    # -- supervising

    def run(self) -> None:
        """Watch the task and copy its output, until the task's first process has ended."""
        while self.wait_status is None:
            timeout = None
            if self.stop_deadline is not None:
                timeout = max(0.0, self.stop_deadline - time.monotonic()) * 1000
            if self.oom_until is not None:
                timeout = KILL_POLL_S * 1000
            pause_s = self.outputs.pause()
            if pause_s > 0.0:
                timeout = min(pause_s * 1000 + 1, timeout if timeout is not None else math.inf)
            ready = {descriptor for descriptor, _ in self.poll.poll(timeout)}
            if self.wakeup in ready:
                self._take_signals()
            if self.control in ready:
                self._take_commands()
            if self.oom_event in ready:
                os.read(self.oom_event, 8)
                self.oom_until = time.monotonic() + OOM_WITHIN_S
            if self.oom_until is not None:
                self._look_for_kills(self.oom_until)
            self.outputs.copy(ready)
            if self.stop_deadline is not None and time.monotonic() >= self.stop_deadline:
                self.killed_after_notice = True
                self._kill_everything()
                self.stop_deadline = time.monotonic() + KILL_POLL_S
        self.outputs.listen(True)

    def _look_for_kills(self, until: float) -> None:
        """If the kernel has killed a process of the task because memory ran out, kill all processes of the task. If it
        has not, later calls check again, until the time `until` (monotonic seconds).

        With version 1 of control groups, the kernel may have killed a process outside this task, for example in its
        alloc.
        """
        if cgroupfs.oom_kills(self.launch.groups) > self.oom_kills:
            self._kill_everything()
        elif time.monotonic() < until:
            return
        self.oom_until = None

    def _take_signals(self) -> None:
        numbers = os.read(self.wakeup, 512)
        if signal.SIGTERM in numbers:
            self.stop(self.launch.notice_s, "stopped", "the supervisor received SIGTERM")
        self._reap()

    def _take_commands(self) -> None:
        """Read commands from the pipe `control`. `stop <notice in ms> <cause> <detail>` stops the task with the given
        notice period, cause and detail. `signal` sends SIGHUP to the task's first process.
        """
        *lines, self.unread = (self.unread + os.read(self.control, COMMAND_BYTES)).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            milliseconds, _, rest = rest.partition(" ")
            cause, _, detail = rest.partition(" ")
            if word == "stop" and milliseconds.isdigit() and cause:
                self.stop(int(milliseconds) / 1000, cause, detail)
            elif word == "signal" and not rest:
                if self.pid and self.wait_status is None:
                    proctable.send_signal(self.pid, signal.SIGHUP)
            else:  # without root, the task itself may write here; stderr is supervisor.log
                print(f"unknown request: {line[:200]!r}", file=sys.stderr, flush=True)

    def stop(self, notice_s: float, cause: str, detail: str) -> None:
        """Send SIGTERM now, and SIGKILL after `notice_s` seconds. A second call can only make this time shorter."""
        deadline = time.monotonic() + max(0.0, notice_s)
        if self.stop_deadline is None:
            self.stop_cause, self.stop_detail = cause, detail
            self.stop_deadline, self.stop_notice_s = deadline, notice_s
            self._signal_everything(signal.SIGTERM)
        elif deadline < self.stop_deadline:
            self.stop_deadline, self.stop_notice_s = deadline, notice_s

    def _reap(self) -> bool:
        """Collect the exit statuses of ended child processes. Return whether any child still runs."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.wait_status = status

    def _everyone(self) -> set[int]:
        found = set(proctable.descendants(proctable.children_of(proctable.table()), os.getpid()))
        return found | cgroupfs.members(self.launch.groups)

    def _signal_everything(self, number: int) -> None:
        """Send the signal `number` to all processes of the task. The init of a container gets only SIGKILL, because its
        end would end all processes of the container.
        """
        for pid in self._everyone() - ({self.init} if number != signal.SIGKILL else set()):
            proctable.send_signal(pid, number)

    def _kill_everything(self) -> None:
        # Stopped processes cannot fork before the kill. Nor can they end by themselves because a fork is forbidden.
        self._signal_everything(signal.SIGSTOP)
        if self.launch.groups:
            cgroupfs.kill(self.launch.groups)
        self._signal_everything(signal.SIGKILL)

    # -- ending

    def finish(self) -> None:
        """Kill the remaining processes of the task, and copy its last output."""
        while self._reap() or cgroupfs.members(self.launch.groups):
            self._kill_everything()
            self.outputs.copy()
            time.sleep(KILL_POLL_S)
        self.outputs.finish()

    def verdict(self) -> dict[str, object]:
        """Return how the task ended, as the fields of `messages.Exit`."""
        assert self.wait_status is not None
        code = os.waitstatus_to_exitcode(self.wait_status)
        fields: dict[str, object] = {"cause": "exited" if code >= 0 else "signaled", "at": time.time()}
        fields["status" if code >= 0 else "signal"] = abs(code)
        groups = self.launch.groups
        if self.stop_cause:
            notes = [self.stop_detail] if self.stop_detail else []
            if self.killed_after_notice and self.stop_notice_s > 0:
                notes.append(f"killed after a notice of {self.stop_notice_s:g} s")
            fields |= {"cause": self.stop_cause, "detail": "; ".join(notes), "notice": self._notice()}
        elif cgroupfs.oom_kills(groups):
            fields |= out_of_memory(groups, ram_limit=self.launch.ram_limit)
        elif code != 0 and (refused := cgroupfs.refused_forks(groups)):
            fields["detail"] = f"the kernel rejected {refused} forks at the limit of processes"
        return fields

    def _notice(self) -> str:
        """Return whether the task got the full time between SIGTERM and SIGKILL, a shorter time or none: "full",
        "short" or "none".
        """
        if not self.killed_after_notice or self.stop_notice_s >= self.launch.notice_s:
            return "full"
        return "short" if self.stop_notice_s > 0 else "none"


def main() -> None:
    os.closerange(3, 2**31 - 1)  # descriptors that the Borglet may have inherited
    no_core_dumps()
    data = b""
    while chunk := os.read(0, 1 << 20):
        data += chunk
    if not data:
        return  # the Borglet died before it sent the task
    supervisor = TaskSupervisor(TaskLaunch(marshal.loads(data)))  # noqa: S302 - from the Borglet, through a pipe of ours
    reason = supervisor.start()
    supervisor.launch.environment = {}  # it may contain secrets, and only the start needs it
    answer = f"failed {reason}\n" if reason else "started\n"
    try:  # noqa: SIM105 - contextlib would cost each task 3 ms
        os.write(1, answer.encode(errors="replace"))
    except BrokenPipeError:
        pass  # the Borglet has died; the next one reads the files
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    supervisor.run()
    supervisor.finish()
    fields = supervisor.verdict()
    if reason:
        fields = {"cause": "start-failed", "at": time.time(), "detail": reason}
    groups = supervisor.launch.groups
    write_exit(supervisor.launch.directory, fields)
    cgroupfs.remove(groups)
    sys.stderr.flush()
