"""The `oci` runtime: `crun` opens a container for each task, and a supervisor watches the task (§6).

    plan               chooses user, environment and address; rejects requests that this machine does not support
    prepare_container  makes the root directory, config.json, process.json and the network
    clear              removes the network

A task in a container sees only its own processes and files, and, read-only, /usr of the machine or its package. It has
its own user and no capabilities. It may use only the system calls in `syscalls`, and cannot get more privileges.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import msgspec

from borglet.messages import CONFIG, SECRET, RunTask, ShellClaims
from borglet.runtimes.base import task_command, task_users
from borglet.runtimes.base.networks import TaskNetworks, choose_address
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.base.secret_files import LOCK_SOCKET, SecretFiles
from borglet.runtimes.base.task_users import Account
from borglet.runtimes.cgroups.limits import kernel_limits
from borglet.runtimes.home.confinement import Confinement, LaunchPlan
from borglet.runtimes.home.runtime_home import SupervisedSettings
from borglet.runtimes.home.supervised_runtime import SupervisedRuntime
from borglet.runtimes.home.taskdirs import SupervisorId, TaskDirectory, TaskRecord
from borglet.runtimes.oci import bundle, rootfs
from borglet.runtimes.oci.bundle import ALLOC, CONFIG_FILES, IDENTITY, PACKAGES, SECRETS, TMP, WORK, DeviceNode, Mount
from borglet.runtimes.supervisor.container import ContainerPlace, run_engine
from borglet.runtimes.supervisor.exec_task import allowed_files
from borglet.runtimes.supervisor.ptys import PtyRequest, ShellRefused

log = logging.getLogger(__name__)

ENGINE, INIT = "crun", "catatonit"
FIRST_UID, UIDS = 200_000, 65_536


class Unavailable(Exception):
    """The error if this machine does not support containers. The message says why, and what to do. `code`: a short code
    for the reason.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class OciSettings(SupervisedSettings):
    """The settings of the `oci` runtime on this machine."""

    users: frozenset[str] = frozenset()  # users that job files may name
    first_uid: int = FIRST_UID  # first number of the users of tasks, which no other user may have
    uids: int = UIDS  # number of these users
    devices: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # accelerator -> its device nodes
    path: str = bundle.DEFAULT_PATH  # PATH of tasks
    network: IPv4Network | None = None  # addresses of tasks with their own network; None: no such tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan(LaunchPlan):
    """The settings with which one run of a task starts in a container, such as its root directory, devices and host
    name.
    """

    process: dict[str, object]  # content of process.json
    base: Path | None  # tree of the package that becomes the root; None: the machine's /usr
    devices: list[DeviceNode]
    shm_bytes: int
    host: str  # host name in its own network


class ContainerConfinement(Confinement):
    """Confines each task in its own container, which `crun` opens."""

    name = "oci"

    def __init__(self, home: Path, settings: OciSettings, *, engine: str, init: str) -> None:
        super().__init__(home)
        self._settings = settings
        self._shared_root = rootfs.SharedRoot(home.absolute() / "roots")
        self._shared_root.sweep(_roots_in_use(home.absolute()))
        self._networks = TaskNetworks(settings.network, home) if settings.network is not None else None
        self._engine, self._init = engine, init
        self._secrets = SecretFiles(home.absolute())

    def attributes(self) -> dict[str, str]:
        return {
            "isolation.user": "task",
            "isolation.pid": "namespace",
            "isolation.filesystem": "own",
            "isolation.network": "own" if self._networks is not None else "none",
            "isolation.syscalls": "seccomp",
        }

    def plan(
        self,
        task: RunTask,
        run: int,
        directory: TaskDirectory,
        trees: Mapping[str, Path],
        kept: Mapping[str, TaskRecord],
    ) -> ContainerPlan:
        address = self._address(task, directory, kept)
        base = _base(task, trees)
        account, own_uid = self._account(task, directory, kept)
        packages = PACKAGES if trees else ""
        argv = task_command.command(task, packages=packages)
        environment = task_command.environment(
            task,
            run=run,
            home=WORK,
            tmp=TMP,
            path=self._settings.path,
            packages=packages,
            alloc=ALLOC if directory.alloc is not None else "",
            identity=f"{IDENTITY}/{directory.identity.name}",
            secrets=SECRETS if any(ref.kind == SECRET and ref.file for ref in task.secrets) else "",
            configs=CONFIG_FILES if any(ref.kind == CONFIG for ref in task.secrets) else "",
            locks=f"{SECRETS}/{LOCK_SOCKET}" if task.locks else "",
        )
        working_directory = task_command.working_directory(task, WORK)
        limits = kernel_limits(task)
        process = bundle.process(
            argv,
            environment,
            working_directory=working_directory,
            account=account,
            open_files=allowed_files(self._settings.open_files),
            oom_score_adj=limits.oom_score_adj,
        )
        devices = self._devices(task)
        container = ContainerPlace(self._engine, str(directory.bundle), directory.name)
        return ContainerPlan(
            account=account,
            trees=trees,
            launch={
                "working_directory": working_directory,
                "argv": argv,
                "environment": environment,
                "user": None,
                "device_rules": bundle.device_rules(devices),
                "container": container.fields(),
            },
            own_uid=own_uid,
            address=address,
            process=process,
            base=base,
            devices=devices,
            shm_bytes=limits.ram_bytes or bundle.DEFAULT_SHM_BYTES,
            host=bundle.hostname_of(task.name),
        )

    def _address(self, task: RunTask, directory: TaskDirectory, kept: Mapping[str, TaskRecord]) -> str:
        """Return the task's address in its own network; empty if the task uses the machine's network."""
        if task.network == "host":
            return ""
        if task.network != "own":
            raise StartFailed(f"network: {task.network!r} is unknown; use host or own")
        if self._networks is None:
            raise StartFailed(
                "network: this machine has no addresses for tasks; use network: host, require a machine with the"
                " attribute isolation.network=own, or ask an SRE to set BORGLET_TASK_NETWORK"
            )
        earlier = kept.get(directory.name)
        taken = {other.address for other in kept.values()}
        mine = earlier.address if earlier else ""
        return str(choose_address(self._networks.network, directory.name, mine=mine, taken=taken))

    def _account(self, task: RunTask, directory: TaskDirectory, kept: Mapping[str, TaskRecord]) -> tuple[Account, int]:
        """Return the task's user, and the user id that is reserved for the task. The user id is 0 if the job file names
        the user.
        """
        if not task.user:
            # A number of the process runtime belongs to a tenant, so this task cannot keep it.
            numbers = {
                name if other.runtime == self.name else f"/{name}": other.own_uid for name, other in kept.items()
            }
            who, taken = directory.name, numbers
            if task.alloc is not None:  # the task keeps the files of its earlier incarnations in the alloc
                who = f"{task.key.job}.{task.key.index}"
                for name, other in kept.items():
                    if other.runtime == self.name and _same_in_alloc(other.task, task):
                        taken[who] = taken.pop(name)
            uid = task_users.own_uid(who, taken, first=self._settings.first_uid, count=self._settings.uids)
            return (uid, uid, []), uid
        account = task_users.account_of(task.user, default="", allowed=self._settings.users)
        if account is None or account[0] == 0:
            raise StartFailed(
                f"user: a task cannot run as {task.user!r} in a container; leave the user out, or give another one"
            )
        return account, 0

    def _devices(self, task: RunTask) -> list[DeviceNode]:
        nodes = []
        for number in task.devices:
            paths = self._settings.devices.get(number)
            if paths is None:
                raise StartFailed(
                    f"devices: accelerator {number} has no device nodes on this machine; an SRE can name them in"
                    " BORGLET_DEVICES"
                )
            nodes += [_node(path) for path in paths]
        return nodes

    async def prepare_container(self, directory: TaskDirectory, plan: LaunchPlan) -> None:
        assert isinstance(plan, ContainerPlan)
        assert plan.account is not None
        network = ""
        if self._networks is not None and plan.address:
            network = str(await self._networks.connect(directory.name, plan.address))
        hostname = plan.host if network else ""
        if directory.bundle.exists():
            shutil.rmtree(directory.bundle)
        directory.bundle.mkdir(mode=0o700)
        root, mounts = rootfs.build(
            directory.root,
            self._shared_root,
            work=directory.work,
            tmp=directory.tmp,
            identity=directory.identity.parent,
            secrets=directory.secrets if directory.secrets.is_dir() else None,
            alloc=directory.alloc,
            trees=plan.trees,
            base=plan.base,
            account=plan.account,
            hosts={hostname: plan.address} if hostname else {},
        )
        container = bundle.ContainerOptions(
            root=str(root),
            mounts=[*mounts, Mount(self._init, bundle.INIT)],
            hostname=hostname,
            marker=directory.marker,
            network=network,
            shm_bytes=plan.shm_bytes,
            devices=plan.devices,
        )
        write_bundle(
            directory.bundle, bundle.config(container, plan.account, architecture=os.uname().machine), plan.process
        )

    def launch_with(
        self, directory: TaskDirectory, plan: LaunchPlan, variables: Mapping[str, str]
    ) -> dict[str, object]:
        assert isinstance(plan, ContainerPlan)
        own: Any = plan.process["env"]
        process = plan.process | {"env": [*own, *(f"{name}={value}" for name, value in variables.items())]}
        path = self._secrets.write_process(directory.name, msgspec.json.encode(process))
        container = ContainerPlace(self._engine, str(directory.bundle), directory.name, str(path))
        return {**plan.launch, "container": container.fields()}

    def shell(
        self, kept: TaskRecord, directory: TaskDirectory, supervisor: SupervisorId, claims: ShellClaims
    ) -> PtyRequest:
        """Return the request that opens a shell in the task's container: it starts the container engine on a terminal,
        and the engine starts the shell. Raises `ShellRefused` if the container's description cannot be read or written.
        """
        container = ContainerPlace(self._engine, str(directory.bundle), directory.name)
        try:
            begun = msgspec.json.decode((directory.bundle / "process.json").read_bytes(), type=dict[str, Any])
            name = f"shell-{claims.session}.json"
            _forget_shells(directory.bundle)
            (directory.bundle / name).write_bytes(msgspec.json.encode(bundle.shell_process(begun, claims)))
        except (OSError, msgspec.DecodeError) as error:
            raise ShellRefused(f"cannot read the container's description: {error}; restart the task") from error
        return PtyRequest(
            argv=container.shell_command(name),
            environment={"PATH": bundle.DEFAULT_PATH},
            directory="/",
            groups=supervisor.groups,
            user=None,
            rows=claims.rows,
            cols=claims.cols,
            plain=claims.plain,
            engine=True,
        )


class OciRuntime(SupervisedRuntime):
    """The runtime that runs each task of one Borglet in a container."""

    def __init__(self, home: Path, settings: OciSettings = OciSettings()) -> None:
        """Check that the container engine works, and set up the runtime. Raises `Unavailable` if the machine does not
        support containers.
        """
        engine, init = find_engine()
        home.mkdir(parents=True, exist_ok=True)
        probe(home, engine, init)
        super().__init__(home, settings, ContainerConfinement(home, settings, engine=engine, init=init))

    def attributes(self) -> dict[str, str]:
        """Return the machine's attributes. `isolation.devices` is `cgroup-v1` if the kernel denies a task the devices
        of other tasks. Otherwise it is `nodes`: the files of these devices are only missing in the task's folder /dev.
        """
        guarded = self._runtime_home.tree.enforces("devices")
        return {**super().attributes(), "isolation.devices": "cgroup-v1" if guarded else "nodes"}


def find_engine(search: str = "") -> tuple[str, str]:
    """Return the paths of the two programs `crun` (the container engine) and `catatonit` (the init). `search`:
    directories, written as in PATH; empty: the usual directories.

    Raises `Unavailable` if one of the programs is missing, or if the Borglet does not run as root.
    """
    if os.geteuid() != 0:
        raise Unavailable("no-root", "containers need a Borglet that runs as root; start it as root")
    search = search or os.environ.get("PATH", "") + ":" + bundle.DEFAULT_PATH
    found = {name: shutil.which(name, path=search) for name in (ENGINE, INIT)}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise Unavailable(
            "no-" + "-".join(missing),
            f"containers need {' and '.join(missing)}, which this machine does not have; on Debian: apt-get install"
            f" {' '.join(missing)}",
        )
    return str(found[ENGINE]), str(found[INIT])


def probe(home: Path, engine: str, init: str) -> None:
    """Open a container whose program ends immediately, to check that the machine supports containers. Raises
    `Unavailable` if the container cannot be opened.
    """
    trash = home / "trash"  # if the Borglet is killed here, its files are deleted with the trash
    trash.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=trash, prefix="probe-") as folder:
        directory = Path(folder)
        account: Account = (FIRST_UID, FIRST_UID, [])
        work, tmp = directory / "work", directory / "tmp"
        work.mkdir()
        tmp.mkdir()
        shared = rootfs.SharedRoot(directory / "roots")
        root, mounts = rootfs.build(directory / "root", shared, work=work, tmp=tmp, account=account)
        container = bundle.ContainerOptions(str(root), [*mounts, Mount(init, bundle.INIT)], "BORG_PROBE=1")
        process = bundle.process([bundle.INIT, "-V"], {}, working_directory="/", account=account, open_files=64)
        config = bundle.config(container, account, architecture=os.uname().machine) | {"process": process}
        write_bundle(directory, config, process)
        box = ContainerPlace(engine, folder, "probe")
        status, output = run_engine(box.command("run", f"--bundle={folder}"))
        if status != 0:
            complaint = box.complaint() or output or status
            raise Unavailable(
                "engine-failed",
                f"{engine} cannot open a container here: {complaint}; check the kernel and the control groups of this"
                " machine",
            )


def write_bundle(directory: Path, config: dict[str, object], process: dict[str, object]) -> None:
    (directory / "config.json").write_bytes(msgspec.json.encode(config))
    (directory / "process.json").write_bytes(msgspec.json.encode(process))


def _roots_in_use(home: Path) -> set[str]:
    """Return the paths of the root directories of all containers of the Borglet with the folder `home`."""
    used = set()
    for description in (home / "tasks").glob("*/bundle/config.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError, KeyError):
            used.add(msgspec.json.decode(description.read_bytes())["root"]["path"])
    return used


def _forget_shells(directory: Path) -> None:
    """Delete the files that describe shells and are older than a minute. The engine has already read these files."""
    for path in directory.glob("shell-*.json"):
        if time.time() - path.stat().st_mtime > 60.0:
            path.unlink()


def _same_in_alloc(one: RunTask, other: RunTask) -> bool:
    return (one.key.job, one.key.index, one.alloc) == (other.key.job, other.key.index, other.alloc)


def _base(task: RunTask, trees: Mapping[str, Path]) -> Path | None:
    if task.root == "host":
        return None
    if task.root != "packages":
        raise StartFailed(f"root: {task.root!r} is unknown; use host or packages")
    if not trees:
        raise StartFailed(
            "root: packages needs at least one package, because the first one becomes the root directory; add a"
            " package, or use host"
        )
    return next(iter(trees.values()))


def _node(path: str) -> DeviceNode:
    try:
        about = os.stat(path)
    except OSError as error:
        raise StartFailed(
            f"devices: cannot give {path} of this machine to the task: {error.strerror}; an SRE can correct"
            " BORGLET_DEVICES"
        ) from error
    kind = {0o020000: "c", 0o060000: "b"}.get(about.st_mode & 0o170000)
    if kind is None:
        raise StartFailed(f"devices: {path} of this machine is not a device; an SRE can correct BORGLET_DEVICES")
    return DeviceNode(path, kind, os.major(about.st_rdev), os.minor(about.st_rdev))
