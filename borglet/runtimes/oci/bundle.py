"""Describe a task's container as in the OCI runtime specification: config.json, and process.json of the task. Pure.

The first process of the container (the init) only waits and collects ended processes. Then the engine's command `exec`
starts the task's program in the container. The parent of this program is the supervisor, which receives its exit
status.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from borglet.messages import ShellClaims
from borglet.runtimes.base.task_command import LOGIN_SHELL
from borglet.runtimes.base.task_users import TASK_UID, Account
from borglet.runtimes.oci import syscalls

INIT = "/dev/init"  # the path of the init's program in the container
WORK, TMP, PACKAGES, ALLOC = "/work", "/tmp", "/packages", "/alloc"  # noqa: S108 - inside a container
IDENTITY = "/run/borg"
SECRETS = "/run/secrets"
CONFIG_FILES = "/run/configs"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_SHM_BYTES = 64 * 2**20

_READ_ONLY = ["bind", "ro", "nosuid", "nodev", "rprivate"]
_WRITABLE = ["bind", "rw", "nosuid", "nodev", "rprivate"]
# Only system calls of these ABIs are allowed, not those of other ABIs of the same processor.
_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_EPERM, _ENOSYS = 1, 38

# These paths reveal or change the machine, so they are hidden or read-only.
_MASKED = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/sys/fs/cgroup",
]
_READ_ONLY_PATHS = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the machine, mounted in the container."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """The device file of an accelerator that the scheduler assigned to the task."""

    path: str
    kind: str  # c or b
    major: int
    minor: int


# Devices of every container: null, zero, full, random, urandom, tty, ptmx and its terminals.
_USUAL_DEVICES = ("c 1:3", "c 1:5", "c 1:7", "c 1:8", "c 1:9", "c 5:0", "c 5:2", "c 136:*")


def device_rules(nodes: Iterable[DeviceNode]) -> list[str]:
    """Return the device rules for control groups of version 1. They allow a task to read and write the usual devices
    and `nodes`.
    """
    own = [f"{node.kind} {node.major}:{node.minor}" for node in nodes]
    return [f"{device} rw" for device in (*_USUAL_DEVICES, *own)]


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """The options of a container that differ from task to task."""

    root: str  # directory on the machine
    mounts: Sequence[Mount]
    marker: str  # NAME=value in the init's environment
    hostname: str = ""  # empty: the machine's host name
    network: str = ""  # path of a network namespace; empty: the machine's network
    shm_bytes: int = DEFAULT_SHM_BYTES
    devices: Sequence[DeviceNode] = ()


def config(container: ContainerOptions, account: Account, *, architecture: str) -> dict[str, object]:
    """Return the content of config.json, which describes the container. Process 1 of the container has another user
    than the task, so that the task cannot send signals to process 1 or read its memory.
    """
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "mount", "uts", "ipc")]
    if container.network:
        namespaces.append({"type": "network", "path": container.network})
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": TASK_UID, "gid": TASK_UID},
            "args": [INIT, "-P"],
            "env": [container.marker],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": _no_capabilities(),
        },
        "root": {"path": container.root, "readonly": True},
        **({"hostname": container.hostname} if container.hostname else {}),
        "mounts": [*_kernel_mounts(container.shm_bytes), *map(_bind, container.mounts)],
        "linux": {
            "namespaces": namespaces,
            "rootfsPropagation": "private",
            # A task may bind all ports of its own address.
            **({"sysctl": {"net.ipv4.ip_unprivileged_port_start": "0"}} if container.network else {}),
            "maskedPaths": _MASKED,
            "readonlyPaths": _READ_ONLY_PATHS,
            "devices": [_device(node, account) for node in container.devices],
            "seccomp": seccomp(architecture),
        },
    }


def process(
    argv: list[str],
    environment: dict[str, str],
    *,
    working_directory: str,
    account: Account,
    open_files: int,
    oom_score_adj: int = 0,
) -> dict[str, object]:
    """Return the content of process.json, which describes the task's program."""
    uid, gid, groups = account
    return {
        "terminal": False,
        "user": {"uid": uid, "gid": gid, "additionalGids": [group for group in groups if group != gid]},
        "args": argv,
        "env": [f"{name}={value}" for name, value in environment.items()],
        "cwd": working_directory,
        "noNewPrivileges": True,
        "capabilities": _no_capabilities(),
        "rlimits": [
            {"type": "RLIMIT_NOFILE", "soft": open_files, "hard": open_files},
            {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
        ],
        "oomScoreAdj": oom_score_adj,
    }


def shell_process(begun: dict[str, Any], claims: ShellClaims) -> dict[str, Any]:
    """Return the description of a shell in the task's container. `begun`: the content of process.json; the result has
    another program and a terminal.
    """
    size = {"height": claims.rows, "width": claims.cols}
    return begun | {
        "terminal": not claims.plain,
        **({} if claims.plain else {"consoleSize": size}),
        "args": claims.command or LOGIN_SHELL,
        "env": [*begun["env"], f"TERM={claims.term}"],
        "oomScoreAdj": 1000,  # if memory is short, the kernel ends shells before other processes
    }


def seccomp(architecture: str) -> dict[str, object]:
    """Return the seccomp profile (the allowed system calls) for the machine's architecture, made from the lists in
    `syscalls`.
    """
    rules: list[dict[str, object]] = [
        {"names": list(syscalls.ALLOWED), "action": "SCMP_ACT_ALLOW"},
        {"names": list(syscalls.REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
        _where("clone", 0, syscalls.NEW_NAMESPACES, "SCMP_CMP_MASKED_EQ", value_two=0),
    ]
    rules += [_where("socket", 0, family, "SCMP_CMP_EQ") for family in syscalls.SOCKET_FAMILIES]
    rules += [_where("personality", 0, value, "SCMP_CMP_EQ") for value in syscalls.PERSONALITIES]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _ENOSYS,
        "architectures": [_ARCHITECTURES[architecture]] if architecture in _ARCHITECTURES else [],
        "syscalls": rules,
    }


def hostname_of(name: str) -> str:
    """Return the host name that a task with its own network sees. `name`: the BNS name of the task. The result consists
    of the job and the index.
    """
    job, _, index = "-".join(name.split("/")[-2:]).rpartition("-")
    return f"{job[:52]}-{index}".lower().strip("-")


def _where(name: str, index: int, value: int, operation: str, value_two: int = 0) -> dict[str, object]:
    argument = {"index": index, "value": value, "valueTwo": value_two, "op": operation}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument]}


def _no_capabilities() -> dict[str, list[str]]:
    return {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")}


def _kernel_mounts(shm_bytes: int) -> Iterable[dict[str, object]]:
    yield _mount("/proc", "proc", ["nosuid", "noexec", "nodev"])
    yield _mount("/dev", "tmpfs", ["nosuid", "noexec", "strictatime", "mode=755", "size=64k"])
    yield _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"])
    yield _mount("/dev/shm", "tmpfs", ["nosuid", "noexec", "nodev", "mode=1777", f"size={shm_bytes}"])  # noqa: S108
    yield _mount("/dev/mqueue", "mqueue", ["nosuid", "noexec", "nodev"])
    yield _mount("/sys", "sysfs", ["nosuid", "noexec", "nodev", "ro"])


def _mount(target: str, kind: str, options: list[str]) -> dict[str, object]:
    return {"destination": target, "type": kind, "source": kind, "options": options}


def _bind(mount: Mount) -> dict[str, object]:
    return {
        "destination": mount.target,
        "type": "bind",
        "source": mount.source,
        "options": _WRITABLE if mount.writable else _READ_ONLY,
    }


def _device(node: DeviceNode, account: Account) -> dict[str, object]:
    uid, gid, _ = account
    return {
        "path": node.path,
        "type": node.kind,
        "major": node.major,
        "minor": node.minor,
        "fileMode": 0o600,
        "uid": uid,
        "gid": gid,
    }
