"""The directories of tasks. After a restart of the Borglet, they show which tasks were started.

tasks/<job>.<index>.<incarnation>/
    task.json        the task, the number of its present run, and the start time of this run
    supervisor.json  the supervisor of the task: pid, start time, boot id, control groups
    control          fifo to the supervisor
    begun            an empty file that the supervisor creates before it starts a process of this run
    exit.json        the exit of this run; the supervisor writes it, or the Borglet if the supervisor was killed
    supervisor.log   errors of the supervisor; normally empty
    identity/token   the signed identity of the task, which only the task's user can read
    work/  tmp/      the working directory of the task (HOME), and its TMPDIR
    packages/        a link to the folder of each package
    secrets/         in memory, not here: the files with secrets of the task, see `secret_files`
    root/  bundle/   only for a task in a container: files of its root directory; description and state of the container
logs/<job>.<index>.<incarnation>/    stdout.<offset>, stderr.<offset>; for a task in an alloc, this is a link
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from borglet.files import replace_file
from borglet.messages import Exit, RunTask, TaskKey
from borglet.runtimes.supervisor.container import last_line

log = logging.getLogger(__name__)

Content = TypeVar("Content")

_NAME = re.compile(r"([0-9A-Za-z_-]{1,64})\.([0-9]{1,9})\.([0-9]{1,9})\Z")


class TaskRecord(msgspec.Struct, frozen=True):
    """The content of task.json: the task, and facts about its present run, which a restarted Borglet needs."""

    task: RunTask
    run: int
    started_at: float
    own_uid: int = 0  # number reserved for the task (oci) or its tenant (process); 0: the job file names the user
    address: str = ""  # address of the task's own network
    runtime: str = "process"  # the runtime that started it


class SupervisorId(msgspec.Struct, frozen=True):
    """The content of supervisor.json. `started` (ticks since boot) and `boot_id` show whether another process now has
    the number `pid`.
    """

    pid: int
    started: int
    boot_id: str
    groups: dict[str, str] = {}


def directory_name(key: TaskKey) -> str:
    """Return the name of a task's directory. Raises ValueError if the key contains characters that are not safe in a
    file name.
    """
    name = f"{key.job}.{key.index}.{key.incarnation}"
    if not _NAME.match(name):
        raise ValueError(f"key: {str(key)!r} is not a task key; give <job uid>/<index>/<incarnation>")
    return name


def key_of(name: str) -> TaskKey | None:
    """Return the key of the task with this directory name. Return None if `name` cannot be the name of a task's
    directory.
    """
    match = _NAME.match(name)
    return TaskKey(match[1], int(match[2]), int(match[3])) if match else None


def log_directory(home: Path, name: str) -> Path:
    """Return the directory of a task's logs: a folder in `logs/`, or in the task's alloc. `name`: the name of the
    task's directory.
    """
    outside = home / "logs" / name
    try:
        target = os.readlink(outside)
    except OSError:
        return outside
    parts = target.split("/")
    alloc = key_of(parts[2]) if len(parts) == 5 else None
    if alloc is None or target != link_into_alloc(alloc, name):
        return outside
    return home / "allocs" / parts[2] / "logs" / name


def link_into_alloc(alloc: TaskKey, task: str) -> str:
    """Return the target of the link `logs/<task>` for a task in an alloc. `task`: the name of the task's directory."""
    return f"../allocs/{directory_name(alloc)}/logs/{task}"


class TaskDirectory:
    """The files of one incarnation of a task. Each write replaces a whole file. Only exit.json is flushed to the disk,
    so that it survives a power loss.
    """

    def __init__(self, home: Path, key: TaskKey, *, alloc: Path | None = None) -> None:
        """Compute the paths of the task's files. `alloc`: the folder of the task's alloc. Raises ValueError if `key`
        contains characters that are not safe in a file name.
        """
        self.name = directory_name(key)
        self.path = home / "tasks" / self.name
        self.alloc = alloc
        self._home = home
        self.work, self.tmp = self.path / "work", self.path / "tmp"
        self.packages = self.path / "packages"
        # The Borglet replaces the token while the task runs, so containers mount the folder, not the file.
        self.identity = self.path / "identity" / "token"
        self.secrets = home / "secrets" / self.name
        self.root, self.bundle = self.path / "root", self.path / "bundle"
        self.control = self.path / "control"

    @property
    def logs(self) -> Path:
        return log_directory(self._home, self.name)

    @property
    def marker(self) -> str:
        """Return the environment variable `NAME=value` that marks the processes of this task."""
        return f"BORG_TASK_DIR={self.path}"

    def prepare(self, kept: TaskRecord, *, owner: tuple[int, int] | None) -> None:
        """Create the files of a new run. The files of an earlier run's supervisor, such as exit.json, are deleted
        first. `kept`: the content of the new task.json. `owner`: uid and gid for the task's own folders.
        """
        self.path.mkdir(mode=0o711, exist_ok=True)
        self.logs.mkdir(mode=0o750, parents=True, exist_ok=True)
        for stale in ("supervisor.json", "begun", "exit.json", "exit.json.new"):
            (self.path / stale).unlink(missing_ok=True)
        for own in (self.work, self.tmp):
            own.mkdir(mode=0o700, exist_ok=True)
            if owner is not None:
                os.chown(own, *owner)
        self.identity.parent.mkdir(mode=0o711, exist_ok=True)
        if not self.control.is_fifo():
            os.mkfifo(self.control, 0o600)
        self.write_kept(kept)

    def write_identity(self, token: str) -> None:
        """Replace the task's identity, which only its user can read. Raises OSError if the file cannot be written."""
        owner = os.stat(self.work)
        self.identity.parent.mkdir(mode=0o711, exist_ok=True)  # an older Borglet made no such folder
        new = self.identity.with_name("token.new")
        new.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(new, flags, 0o400), "w", encoding="ascii") as file:
            if owner.st_uid != os.geteuid():
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(token)
        os.replace(new, self.identity)

    def link_packages(self, trees: Mapping[str, Path]) -> None:
        if not trees:
            return
        self.packages.mkdir(mode=0o755, exist_ok=True)
        for stale in os.scandir(self.packages):
            os.unlink(stale.path)
        for name, tree in trees.items():
            (self.packages / name).symlink_to(tree)

    def write_kept(self, kept: TaskRecord) -> None:
        replace_file(self.path / "task.json", msgspec.json.encode(kept), durable=False)

    def write_supervisor(self, supervisor: SupervisorId) -> None:
        replace_file(self.path / "supervisor.json", msgspec.json.encode(supervisor), durable=False)

    def write_exit(self, exit_: Exit) -> None:
        """Write exit.json. The Borglet calls this method if the supervisor was killed or did not start. Raises OSError
        if the file cannot be written.
        """
        replace_file(self.path / "exit.json", msgspec.json.encode(exit_))

    def kept(self) -> TaskRecord | None:
        return self._read("task.json", TaskRecord)

    def supervisor(self) -> SupervisorId | None:
        return self._read("supervisor.json", SupervisorId)

    def exit(self) -> Exit | None:
        return self._read("exit.json", Exit)

    def begun(self) -> bool:
        return (self.path / "begun").exists()

    def complaint(self) -> str:
        """Return the last line of supervisor.log, or an empty text if the file has no line or does not exist."""
        return last_line(str(self.path / "supervisor.log"))

    def _read(self, name: str, kind: type[Content]) -> Content | None:
        """Return the content of a file. Return None if the file does not exist or is incomplete."""
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            log.warning("cannot read %s of task %s: %s", name, self.name, error)
            return None
